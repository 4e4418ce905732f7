"""GateRecords: what a benchmark run measured, on what, and whether it may stand for the commit at hand."""
