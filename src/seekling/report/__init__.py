"""Run folders to tables, curves and one self-contained HTML page; reads files only."""

from seekling.report.page import write_report
from seekling.report.read import RunFolder, read_run

__all__ = ["RunFolder", "read_run", "write_report"]
