"""The report of a run: one HTML file that needs nothing else, and the pictures it is made of."""

from selfmark.report.page import ReportData, write_report
from selfmark.report.parts import ReportCurves, ReportTable
from selfmark.report.pictures import contact_sheet

__all__ = ["ReportCurves", "ReportData", "ReportTable", "contact_sheet", "write_report"]
