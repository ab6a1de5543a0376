"""Write the report of a run: one self-contained HTML file that contains all its pictures."""

from selfmark.report.landmark_pictures import draw_contact_sheet
from selfmark.report.report_page import ReportData, write_report
from selfmark.report.sections import ReportCurves, ReportTable

__all__ = ["ReportCurves", "ReportData", "ReportTable", "draw_contact_sheet", "write_report"]
