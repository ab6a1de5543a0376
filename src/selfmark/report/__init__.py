"""The report of a run: one HTML file that needs nothing else, and the pictures it is made of."""

from selfmark.report.landmark_pictures import draw_contact_sheet
from selfmark.report.page import ReportData, write_report
from selfmark.report.sections import ReportCurves, ReportTable

__all__ = ["ReportCurves", "ReportData", "ReportTable", "draw_contact_sheet", "write_report"]
