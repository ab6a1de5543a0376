"""The report of a run: one self-contained HTML file, and the pictures in it."""

from selfmark.report.landmark_pictures import draw_contact_sheet
from selfmark.report.page import ReportData, write_report
from selfmark.report.sections import ReportCurves, ReportTable

__all__ = ["ReportCurves", "ReportData", "ReportTable", "draw_contact_sheet", "write_report"]
