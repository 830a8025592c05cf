"""Export of traces to other tools: Perfetto, speedscope, spreadsheets, data frames."""

from llmprof.report.export.write import FORMS, export

__all__ = ["FORMS", "export"]
