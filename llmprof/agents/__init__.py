"""Questions of agents about traces, and the server that answers them."""

from llmprof.agents.server import server
from llmprof.agents.tools import Tools

__all__ = ["Tools", "server"]
