"""All that people read, in one place."""

from shunter.report.audit import audit_text, record_text
from shunter.report.operation import operation_line
from shunter.report.plan import plan_text, summary_table
from shunter.report.status import status_text

__all__ = ["audit_text", "operation_line", "plan_text", "record_text", "status_text", "summary_table"]
