"""Servers that run already: a window of one recorded, the bad moment waited for, and what changed
since a good one.

>>> import llmprof
>>> run = llmprof.record("http://127.0.0.1:8000", seconds=3)  # doctest: +SKIP
>>> llmprof.watch("http://127.0.0.1:8000", "ttft_p99 > 500ms for 30s")  # doctest: +SKIP
"""

from typing import TYPE_CHECKING

from llmprof.errors import door
from llmprof.run.live.changes import changed
from llmprof.run.live.past import history
from llmprof.run.live.recording import record
from llmprof.run.live.watching import watch

if TYPE_CHECKING:
    from llmprof.run.live.widget import dashboard

# at its first use: a server is recorded where no notebook is
door(globals(), {"run.live.widget": "dashboard"})
