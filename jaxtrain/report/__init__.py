"""What a person sees of a run, and what is recorded for later.

metrics.jsonl is the one truth; TensorBoard's files are made from it and can be made again.
"""

from jaxtrain.report.console import Console, open_console
from jaxtrain.report.metrics_log import MetricsLog
from jaxtrain.report.preparing import preparing
from jaxtrain.report.quiet import QuietReporter
from jaxtrain.report.reporter import BatchProgress, Reporter
from jaxtrain.report.rows import Row, RowText, check_rows_file, open_rows, stdout_text
from jaxtrain.report.sparkline import sparkline

__all__ = [
    "BatchProgress",
    "Console",
    "MetricsLog",
    "QuietReporter",
    "Reporter",
    "Row",
    "RowText",
    "check_rows_file",
    "open_console",
    "open_rows",
    "preparing",
    "sparkline",
    "stdout_text",
]
