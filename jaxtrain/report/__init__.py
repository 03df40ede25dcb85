"""What a person sees of a run, and what is recorded for later.

metrics.jsonl is the one truth; TensorBoard's files are made from it and can be made again.
"""

from jaxtrain.report.console import Console, loss_text, open_console, percent
from jaxtrain.report.metrics_log import MetricsLog
from jaxtrain.report.preparing import preparing
from jaxtrain.report.quiet import QuietReporter
from jaxtrain.report.reporter import BatchProgress, Reporter, TrainReport
from jaxtrain.report.rows import Row, RowText, check_rows_file, open_rows, stdout_text
from jaxtrain.report.several import mean, replica_name, summed_up
from jaxtrain.report.sparkline import sparkline
from jaxtrain.report.sweep import sweep_picture

__all__ = [
    "BatchProgress",
    "Console",
    "MetricsLog",
    "QuietReporter",
    "Reporter",
    "Row",
    "RowText",
    "TrainReport",
    "check_rows_file",
    "loss_text",
    "mean",
    "open_console",
    "open_rows",
    "percent",
    "preparing",
    "replica_name",
    "sparkline",
    "stdout_text",
    "summed_up",
    "sweep_picture",
]
