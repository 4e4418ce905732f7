"""The results of a check, for people, CI systems, pull requests and programs."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any
from xml.etree import ElementTree as ET

import msgspec

from runspan.cli._output import clean, counted, format_number
from runspan.gate import GateOutcome
from runspan.gate.baseline import BOUNDS_PATH, CONFIG_PATH

if TYPE_CHECKING:
    from collections.abc import Iterator

    from runspan.gate import GateResult
    from runspan.gate._results import GateReport, MetricResult

__all__ = ["document", "github_lines", "junit_lines", "markdown_lines", "text_lines"]

_WIDTH = max(map(len, GateOutcome))
_SHORT_SHA = 10


def document(report: GateReport) -> dict[str, Any]:
    """Return the report as one JSON document."""
    passed = report.exit_code == 0
    return {"passed": passed, "exit_code": report.exit_code, **msgspec.to_builtins(report)}


def text_lines(report: GateReport) -> Iterator[str]:
    """Yield the report for a terminal: a line a benchmark, under it what was measured and what is wrong."""
    for result in report.results:
        yield clean(f"{result.outcome:<{_WIDTH}}  {result.benchmark_id}{_where(result)}")
        for metric in result.metrics:
            yield clean(f"{'':<{_WIDTH}}    {_measured(metric)}")
        for problem in result.problems:
            yield clean(f"{'':<{_WIDTH}}  ! {problem}")
        for warning in result.warnings:
            yield clean(f"{'':<{_WIDTH}}  WARNING: {warning}")
    for heading, _, changes in _changes(report):
        yield f"{heading}:"
        for change in changes:
            yield clean(f"  {change}")
    yield clean(_conclusion(report))


def markdown_lines(report: GateReport) -> Iterator[str]:
    """Yield the report as Markdown, for a comment on a pull request."""
    yield f"### {_markdown(_conclusion(report))}"
    yield ""
    if report.results:
        yield "| benchmark | outcome | measured | record |"
        yield "| --- | --- | --- | --- |"
    for result in report.results:
        measured = "<br>".join(_markdown(_measured(metric)) for metric in result.metrics)
        where = _markdown(result.record or "none")
        yield f"| {_markdown(result.benchmark_id)} | {_markdown(result.outcome)} | {measured} | {where} |"
    for result in report.results:
        said = [*result.problems, *(f"WARNING: {warning}" for warning in result.warnings)]
        if said:
            yield ""
            yield f"{_markdown(result.benchmark_id)}:"
            yield ""
            yield from (f"- {_markdown(line)}" for line in said)
    for heading, _, changes in _changes(report):
        yield ""
        yield f"{heading}:"
        yield ""
        yield from (f"- {_markdown(change)}" for change in changes)


def github_lines(report: GateReport) -> Iterator[str]:
    """Yield the report as GitHub's workflow commands, which become annotations."""
    for result in report.results:
        title = f"{result.outcome} {result.benchmark_id}"
        if result.outcome is not GateOutcome.PASS:
            yield from (_annotation("error", title, problem, result.record) for problem in result.problems)
        else:
            measured = "; ".join(map(_measured, result.metrics))
            yield _annotation("notice", title, measured, result.record)
        yield from (_annotation("warning", title, warning, result.record) for warning in result.warnings)
    for heading, file, changes in _changes(report):
        yield from (_annotation("warning", heading, change, file) for change in changes)
    yield _annotation("notice" if report.exit_code == 0 else "error", "runspan gate", _conclusion(report), None)


def junit_lines(report: GateReport) -> Iterator[str]:
    """Yield the report as JUnit's XML: a failed benchmark is a failure, one without a verdict an error."""
    suite = ET.Element("testsuite", name="runspan gate")
    failures = sum(result.outcome is GateOutcome.FAIL for result in report.results)
    passes = sum(result.outcome is GateOutcome.PASS for result in report.results)
    errors = len(report.results) - failures - passes
    for result in report.results:
        case = ET.SubElement(suite, "testcase", classname="runspan.gate", name=clean(result.benchmark_id))
        if result.outcome is not GateOutcome.PASS:
            kind = "failure" if result.outcome is GateOutcome.FAIL else "error"
            message = result.problems[0] if result.problems else str(result.outcome)
            problem = ET.SubElement(case, kind, type=str(result.outcome), message=clean(message))
            problem.text = "\n".join(map(clean, result.problems))
        said = [*map(_measured, result.metrics), *(f"WARNING: {warning}" for warning in result.warnings)]
        if said:
            ET.SubElement(case, "system-out").text = "\n".join(map(clean, said))
    if report.exit_code and not failures and not errors:
        case = ET.SubElement(suite, "testcase", classname="runspan.gate", name="gate")
        ET.SubElement(case, "error", type="NO_VERDICT", message=clean(_conclusion(report)))
        errors += 1
    if changed := [clean(change) for *_, changes in _changes(report) for change in changes]:
        ET.SubElement(suite, "system-out").text = "\n".join(changed)
    tests = str(len(suite.findall("testcase")))
    suite.attrib |= {"tests": tests, "failures": str(failures), "errors": str(errors), "skipped": "0"}
    suites = ET.Element("testsuites")
    suites.append(suite)
    ET.indent(suites)
    yield '<?xml version="1.0" encoding="UTF-8"?>'
    yield from ET.tostring(suites, encoding="unicode").split("\n")


def _changes(report: GateReport) -> list[tuple[str, str, tuple[str, ...]]]:
    """Return what the work changes of what it is judged by: a heading, the file and the changes."""
    changes = [
        ("Bounds changed since the base", BOUNDS_PATH, report.bounds_changes),
        ("Rules changed since the base", CONFIG_PATH, report.rules_changes),
    ]
    return [change for change in changes if change[-1]]


def _conclusion(report: GateReport) -> str:
    if report.reason is not None:
        return f"Gate: no verdict: {report.reason}"
    passes = sum(result.outcome is GateOutcome.PASS for result in report.results)
    verdict = "passed" if report.exit_code == 0 else "NOT passed"
    return f"Gate {verdict}: {passes} of {counted(len(report.results), 'benchmark')} passed"


def _where(result: GateResult) -> str:
    if result.record is None:
        return ""
    return f"  {result.record} ({result.hardware_key}, {str(result.git_sha)[:_SHORT_SHA]})"


def _measured(metric: MetricResult) -> str:
    value = "missing" if metric.value is None else format_number(metric.value)
    return f"{metric.metric} {value}, {metric.expected}{'' if metric.holds else ': BREACHED'}"


def _markdown(text: str) -> str:
    """Escape what Markdown, its tables and HTML would take for markup; names are the user's."""
    escaped = clean(text).replace("&", "&amp;").replace("<", "&lt;")
    return "".join(f"\\{character}" if character in "\\`*_[]|#~@" else character for character in escaped)


def _annotation(level: str, title: str, message: str, file: str | None) -> str:
    """Write a workflow command; percent signs and line ends are escaped, in its properties colons and commas too."""
    properties = {"title": title} if file is None else {"file": file, "title": title}
    written = ",".join(
        f"{name}={_escaped(value).replace(':', '%3A').replace(',', '%2C')}" for name, value in properties.items()
    )
    return f"::{level} {written}::{_escaped(message)}"


def _escaped(text: str) -> str:
    return clean(text).replace("%", "%25")
