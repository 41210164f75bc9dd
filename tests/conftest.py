"""For all tests: how gRPC is loaded, and failures that went away when they were tried again are shown all the same."""

import pytest

import services.common  # noqa: F401 - sets the environment that gRPC reads when it is loaded, whatever a test imports first

_SHOWN = 4000
"""Characters of what a failed test printed and logged."""


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """Print why a test was tried again: on real clusters that may be the machine, and may be a race of ours."""
    for report in terminalreporter.getreports("rerun"):
        terminalreporter.section(f"tried again: {report.nodeid}", sep="_")
        terminalreporter.write_line(report.longreprtext)
        for title, text in report.sections:
            terminalreporter.write_line(f"{title}:\n{text[-_SHOWN:]}")
