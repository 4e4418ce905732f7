"""``runspan stack``: the collector, Jaeger, Prometheus and Grafana that runs are shipped to."""

from __future__ import annotations

import os
import shlex
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from runspan._endpoints import endpoints, guess_protocol
from runspan._env import check_endpoint
from runspan.cli._checklist import report
from runspan.cli._options import EXIT_CODES, JsonOption
from runspan.cli._output import clean, command_line, counted, print_json, say
from runspan.config import TracingConfig

if TYPE_CHECKING:
    from collections.abc import Mapping

    from runspan._endpoints import OtlpEndpoint

__all__ = ["register"]

# Where docker-compose.yml publishes them.
_COLLECTOR = "http://127.0.0.1:4317"
_JAEGER = "http://127.0.0.1:16686"
_PROMETHEUS = "http://127.0.0.1:9090"
_GRAFANA = "http://127.0.0.1:3000"


def register(app: typer.Typer) -> None:
    """Add the commands."""
    stack = typer.Typer(
        name="stack",
        help="The stack that runs are shipped to: collector, Jaeger, Prometheus, Grafana.",
        short_help="Write the files of a stack to ship to, and check one.",
        no_args_is_help=True,
        rich_markup_mode=None,
        epilog=EXIT_CODES,
    )
    stack.command("check", short_help="Check that the stack does its part.", epilog=EXIT_CODES)(_check)
    stack.command("export-config", short_help="Write the stack's files.", epilog=EXIT_CODES)(_export_config)
    app.add_typer(stack)


def _check(
    *,
    collector: Annotated[
        str | None,
        typer.Option(
            metavar="URL",
            help="OTLP endpoint; over HTTP for port 4318 or a path, else gRPC, unless OTEL_EXPORTER_OTLP_PROTOCOL says"
            f" otherwise.  [env: OTEL_EXPORTER_OTLP_ENDPOINT; default: {_COLLECTOR}]",
        ),
    ] = None,
    jaeger: Annotated[str, typer.Option(metavar="URL", help="Jaeger's page.")] = _JAEGER,
    prometheus: Annotated[str, typer.Option(metavar="URL", help="Prometheus.")] = _PROMETHEUS,
    grafana: Annotated[str, typer.Option(metavar="URL", help="Grafana.")] = _GRAFANA,
    json: JsonOption = False,
) -> None:
    """Check each service, then send a span and a metric through the collector and read them back.

    Tokens and certificates come from the variables that a run reads, OTEL_EXPORTER_OTLP_*. The exit code is 1 when
    there is a problem.
    """
    from runspan.stack.checks import StackAddress, check_stack  # noqa: PLC0415 - loads gRPC

    address = StackAddress(
        collector=_collector_endpoints(collector, os.environ),
        jaeger=_base_url("--jaeger", jaeger),
        prometheus=_base_url("--prometheus", prometheus),
        grafana=_base_url("--grafana", grafana),
    )
    report(check_stack(address), json=json)


def _export_config(
    directory: Annotated[Path, typer.Argument(metavar="[DIR]", help="Folder to write to.")] = Path("runspan-stack"),
    *,
    force: Annotated[bool, typer.Option("--force", help="Overwrite files that were changed.")] = False,
    json: JsonOption = False,
) -> None:
    """Write docker-compose.yml, collector-config/ and docs/scale.md, and a password for Grafana's admin.

    Files that differ from the shipped ones are kept, and nothing is written then, unless --force is given.
    """
    from runspan.stack.files import export_stack  # noqa: PLC0415 - a command loads what it needs

    export = export_stack(directory, force=force)
    if json:
        print_json(export)
        return
    unchanged = f", {export.unchanged} unchanged" if export.unchanged else ""
    say(f"{clean(export.directory)}: {counted(len(export.written), 'file')} written{unchanged}")
    if export.password_generated:
        say("Grafana's admin password was generated: it stands in .env")
    say("")
    say(f"Start it    cd {shlex.quote(export.directory)} && docker compose up --detach")
    say(f"Check it    {command_line('stack', 'check')}")
    say(f"Ship a run  OTEL_EXPORTER_OTLP_ENDPOINT={_COLLECTOR} python train.py")
    say(f"Look        Jaeger {_JAEGER}  Prometheus {_PROMETHEUS}  Grafana {_GRAFANA}")


def _collector_endpoints(url: str | None, environ: Mapping[str, str]) -> dict[str, OtlpEndpoint]:
    """Return where a run would send to, or how it would reach a URL.

    Raises:
        ConfigError: the URL or a variable cannot be used.
    """
    config = TracingConfig.from_env(environ)
    if url is None and config.export_otlp:
        return endpoints(config)
    url = _COLLECTOR if url is None else check_endpoint("--collector", url)
    protocol = config.otlp_protocol or config.otel.traces.protocol or guess_protocol(url)
    return endpoints(replace(config, export_otlp=True, otlp_endpoint=url, otlp_protocol=protocol))


def _base_url(option: str, url: str) -> str:
    """Return a service's URL, with http:// where it has no scheme.

    Raises:
        ConfigError: it is none.
    """
    check_endpoint(option, url)
    return url if "://" in url else f"http://{url}"
