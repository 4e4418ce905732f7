"""The OpenTelemetry side of a run: providers, span processors, metrics, the bounded export."""
