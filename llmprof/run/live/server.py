"""A server that runs: its address, what it says of itself, its counters, and the switch of its
profiler.
"""

from __future__ import annotations

import functools
import json
import re
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from ipaddress import ip_address
from typing import Any, Final

import anyio
import httpx
from anyio.from_thread import start_blocking_portal

from llmprof.errors import ConfigError, LaunchError
from llmprof.readers.common.reader import MOST_RANKS
from llmprof.run.live.counters import Scrape, parsed
from llmprof.trace.storage import typed

API_KEY: Final = "LLMPROF_API_KEY"
"""Environment variable whose value is sent as a bearer token, for a server that asks for one."""

OK: Final = 200
_NOT_HERE: Final = {404, 405}
_CONFLICT: Final = 409
MOST_BYTES: Final = 8 << 20
"""Bound of the body of a request or an answer."""
_SHOWN: Final = 200
_PATHS: Final = ("/metrics", "/v1/models", "/v1")


class LostError(LaunchError):
    """A server did not answer, or answered with something else than what was asked for."""


@dataclass(frozen=True, slots=True)
class Address:
    """Address of a server without credentials; these are sent with each request, and stored
    nowhere.
    """

    url: str
    user: str | None = field(default=None, repr=False)
    password: str | None = field(default=None, repr=False)
    token: str | None = field(default=None, repr=False)

    @classmethod
    def of(cls, text: str, *, token: str | None = None) -> Address:
        """Address from a URL; paths of single endpoints (``/metrics``, ``/v1``) are cut off."""
        expected = "the address of a server, such as http://127.0.0.1:8000"
        try:
            url = httpx.URL(text if "://" in text else f"http://{text}")
        except (httpx.InvalidURL, TypeError, ValueError) as error:
            raise ConfigError(f"the address cannot be read: {error}", expected=expected) from error
        if url.scheme not in {"http", "https"} or not url.host:
            raise ConfigError(
                f"the address has the scheme {url.scheme or 'none'!r}", expected=expected
            )
        if url.query or url.fragment:
            found = "the address has a query"
            raise ConfigError(
                found, expected=expected, hint=f"a token belongs into the variable {API_KEY}"
            )
        if url.userinfo and token:
            found = (
                f"the address has a user or password, and {API_KEY} is set: one request can send"
                " one of them"
            )
            raise ConfigError(
                found, hint=f"leave one of them out: unset {API_KEY}, or the address without them"
            )
        path = url.path.rstrip("/")
        for end in _PATHS:
            path = path.removesuffix(end)
        plain = url.copy_with(userinfo=b"", path=path or "/")
        return cls(str(plain).rstrip("/"), url.username or None, url.password or None, token)

    @property
    def is_local(self) -> bool:
        """Whether the server runs on this machine, by its address."""
        host = httpx.URL(self.url).host
        try:
            return ip_address(host).is_loopback
        except ValueError:
            return host == "localhost"

    @property
    def port(self) -> int:
        """Port of the server."""
        url = httpx.URL(self.url)
        return url.port or (443 if url.scheme == "https" else 80)

    @property
    def name(self) -> str:
        """Host and port as a part of a file name."""
        return re.sub(r"[^\w.-]+", "-", f"{httpx.URL(self.url).host}-{self.port}")


@dataclass(frozen=True, slots=True)
class HttpAnswer:
    """Status and text of an answer."""

    status: int
    text: str

    def document(self) -> Any:
        """The text as JSON; None if it is none, or that of an error."""
        try:
            return (
                typed.bounded_value(json.loads(self.text), len(self.text))
                if self.status == OK
                else None
            )
        except (ValueError, RecursionError):
            return None

    @property
    def words(self) -> str:
        """Status and the beginning of the text, for an error."""
        page = self.text.lstrip()[:15].lower().startswith(("<!doctype html", "<html"))
        said = (
            "a page of HTML, as a proxy or another program writes it"
            if page
            else " ".join(self.text.split())
        )
        return f"{self.status}{': ' if said else ''}{said[:_SHOWN]}"


def send_request(
    method: str, url: str, body: Mapping[str, Any] | None, *, timeout_s: float, **client: Any
) -> HttpAnswer:
    """Send a request; connection, head and body of its answer have ``timeout_s`` together.

    The limits of httpx are for single waits, and an answer that comes in small pieces never reaches
    them. Only what runs in a loop can be ended from outside, and the loop is in a thread, since a
    notebook has its own.
    """
    with start_blocking_portal() as portal:
        return portal.call(functools.partial(_sent, method, url, body, timeout_s, client))


async def _sent(
    method: str,
    url: str,
    body: Mapping[str, Any] | None,
    timeout_s: float,
    client: Mapping[str, Any],
) -> HttpAnswer:
    content, asked = bytearray(), {"Accept-Encoding": "identity"}
    try:
        with anyio.fail_after(timeout_s):
            async with (
                httpx.AsyncClient(timeout=timeout_s, verify=_trusted(), **client) as sender,
                sender.stream(method, url, headers=asked, json=body) as answer,
            ):
                if answer.headers.get("Content-Encoding", "identity") != "identity":
                    raise httpx.DecodingError("the answer is compressed, which was not asked for")
                async for part in answer.aiter_raw():
                    content += part
                    if len(content) > MOST_BYTES:
                        raise httpx.ReadError(f"the answer has more than {MOST_BYTES >> 20} MiB")
                return HttpAnswer(answer.status_code, content.decode("utf-8", "replace"))
    except TimeoutError as error:
        raise httpx.ReadTimeout(f"no whole answer within {timeout_s:g} s") from error


_trusted = functools.cache(httpx.create_ssl_context)


class ServerClient:
    """Requests to one server. Every request ends after its time, also if the answer never does."""

    answer_s: float = 5.0
    """Time of a request that has no time of its own."""

    def __init__(self, address: Address) -> None:
        self.address = address
        signed = bool(address.user or address.password)
        self._client = {
            "auth": (address.user or "", address.password or "") if signed else None,
            "headers": {"Authorization": f"Bearer {address.token}"} if address.token else {},
            "trust_env": not address.is_local,
        }

    def ask(
        self,
        method: str,
        path: str,
        body: Mapping[str, Any] | None = None,
        *,
        timeout_s: float | None = None,
    ) -> HttpAnswer:
        """Send a request, and read its whole answer.

        Raises
        ------
        LostError
            The server does not answer, or not within ``timeout_s`` seconds.
        """
        timeout_s = self.answer_s if timeout_s is None else timeout_s
        try:
            return send_request(
                method, f"{self.address.url}{path}", body, timeout_s=timeout_s, **self._client
            )
        except httpx.TimeoutException as error:
            raise LostError(
                f"{self.address.url}{path} did not answer within {timeout_s:g} s", path=path
            ) from error
        except httpx.HTTPError as error:
            found = (
                f"{self.address.url}{path} does not answer: {str(error) or type(error).__name__}"
            )
            raise LostError(
                found, hint="check the address, and whether the server runs", path=path
            ) from error

    def metrics(self, path: str = "/metrics") -> str:
        """Text of the server's Prometheus metrics."""
        answer = self.ask("GET", path)
        if answer.status != OK or answer.text.lstrip().startswith(("<", "{", "[")):
            found = f"{self.address.url}{path} has no Prometheus metrics: it answers {answer.words}"
            hint = "SGLang has them with --enable-metrics; TensorRT-LLM with return_perf_metrics"
            raise LostError(found, hint=hint, path=path)
        return answer.text

    def scrape(self) -> Scrape:
        """The server's counters; the time of an answer includes that of reading it."""
        until = time.monotonic() + self.answer_s
        scrape = parsed(self.metrics())
        if time.monotonic() > until:
            raise LostError(
                f"the metrics of {self.address.url} cannot be read within {self.answer_s:g} s"
            )
        return scrape

    def document(self, path: str) -> Any:
        """JSON of an endpoint that not every server has; None without it."""
        try:
            return self.ask("GET", path).document()
        except LostError:
            return None

    def start(self, engine: str, body: Mapping[str, Any], *, timeout_s: float) -> None:
        """Switch the profiler on."""
        answer = self.ask("POST", "/start_profile", body, timeout_s=timeout_s)
        if answer.status == OK:
            return
        if answer.status in _NOT_HERE:
            hint = NEEDED.get(engine, f"start it with its profiler: {'; '.join(NEEDED.values())}")
            raise LaunchError(
                f"{self.address.url} has no profiler: /start_profile answers {answer.status}",
                hint=hint,
            )
        if answer.status == _CONFLICT or "already" in answer.text or "in progress" in answer.text:
            found = (
                f"another recording of {self.address.url} is under way: it answers {answer.words}"
            )
            hint = "wait for its end; if nobody records it, POST /stop_profile ends it"
            raise LaunchError(found, hint=hint, busy=True)
        raise LaunchError(f"{self.address.url} refused to start its profiler: {answer.words}")

    def stop(self, *, timeout_s: float) -> HttpAnswer:
        """Switch the profiler off. The answer of most servers comes when the traces are written."""
        return self.ask("POST", "/stop_profile", timeout_s=timeout_s)


NEEDED: Final = {
    "vllm": (
        'vLLM from 0.13 on: --profiler-config \'{"profiler": "torch", "torch_profiler_dir":'
        ' "/profiles"}\'; before: the environment variable VLLM_TORCH_PROFILER_DIR=/profiles'
    ),
    "sglang": (
        "SGLang has it always: check that the address is that of the server and not of a router"
    ),
    "tensorrt_llm": (
        "TensorRT-LLM has /start_profile in newer versions only; before,"
        " TLLM_PROFILE_START_STOP=100-150 and TLLM_TORCH_PROFILE_TRACE=FILE choose the iterations"
        " when it starts"
    ),
    "tgi": "text-generation-inference has no endpoint that starts a profiler",
}
"""What a server needs so that its profiler can be switched on, by engine."""


@dataclass(slots=True)
class About:
    """What a server, or its process on this machine, says of itself; None where nothing says it."""

    engine: str = "unknown"
    version: str | None = None
    model: str | None = None
    root: str | None = None
    ranks: int | None = None
    """Number of processes that write a trace."""
    parallel: dict[str, int] = field(default_factory=dict)
    folder: str | None = None
    """Folder into which it writes traces, on its own machine."""
    pid: int | None = None
    config: dict[str, Any] = field(default_factory=dict)
    """Its configuration without secrets."""
    told_by: list[str] = field(default_factory=list)


_OWNERS: Final = {"vllm": "vllm", "sglang": "sglang", "tensorrt_llm": "tensorrt_llm"}
_PREFIXES: Final = {"vllm:": "vllm", "sglang:": "sglang", "tgi_": "tgi", "trtllm_": "tensorrt_llm"}


def identify(server: ServerClient) -> About:
    """Ask a server what it is."""
    said = About()
    models = server.ask("GET", "/v1/models").document()
    first = _first(models.get("data") if isinstance(models, dict) else None)
    said.engine = _OWNERS.get(str(first.get("owned_by", "")).lower(), "unknown")
    said.model, said.root = _text(first.get("id")), _text(first.get("root"))
    if isinstance(first.get("max_model_len"), int):
        said.config["max_model_len"] = first["max_model_len"]
    if said.engine == "unknown":
        said.engine = _by_metrics(server)
    if first:
        said.told_by.append("/v1/models")
    version = server.document("/version")
    if isinstance(version, dict):
        said.version = _text(version.get("version"))
    if said.engine == "vllm":
        _of_vllm(server, said)
    elif said.engine == "sglang":
        _of_sglang(server, said)
    if server.address.is_local:
        _of_process(server.address.port, said)
    sizes = [said.parallel.get(name, 1) for name in ("tp", "pp", "dp")]
    if said.parallel:
        said.ranks = sizes[0] * sizes[1] * sizes[2]
    return said


def _by_metrics(server: ServerClient) -> str:
    try:
        text = server.metrics()
    except LostError:
        return "unknown"
    return next(
        (engine for start, engine in _PREFIXES.items() if re.search(rf"(?m)^{start}", text)),
        "unknown",
    )


def _of_vllm(server: ServerClient, said: About) -> None:
    """What vLLM tells in its development mode (``VLLM_SERVER_DEV_MODE=1``) only."""
    info = server.document("/server_info?config_format=json")
    config = info.get("vllm_config") if isinstance(info, dict) else None
    if not isinstance(config, dict):
        return
    said.told_by.append("/server_info")
    profiler, parallel = (
        _mapping(config.get("profiler_config")),
        _mapping(config.get("parallel_config")),
    )
    environment = _mapping(_mapping(info).get("vllm_env"))
    if server.address.is_local:  # what another machine names is no folder of this one
        said.folder = _text(profiler.get("torch_profiler_dir")) or _text(
            environment.get("VLLM_TORCH_PROFILER_DIR")
        )
    said.parallel = _sizes(
        parallel, tp="tensor_parallel_size", pp="pipeline_parallel_size", dp="data_parallel_size"
    )
    from llmprof.run.launch.config import disclosure

    parts = {
        name: config.get(name) for name in ("model_config", "cache_config", "scheduler_config")
    }
    kept = {name: _plain(part) for name, part in parts.items() if isinstance(part, dict)}
    changed = {"speculative_config": config, "hf_overrides": _mapping(config.get("model_config"))}
    said.config |= disclosure.disclosed_arguments(
        kept | {"parallel_config": _plain(parallel), "profiler_config": _plain(profiler)}
    )
    said.config |= {
        name: True for name, part in changed.items() if part.get(name)
    }  # the model is another one then


def _of_sglang(server: ServerClient, said: About) -> None:
    info = server.document("/get_server_info") or server.document("/server_info")
    if not isinstance(info, dict):
        return
    said.told_by.append("/get_server_info")
    said.version = _text(info.get("version")) or said.version
    said.root = _text(info.get("model_path")) or said.root
    from llmprof.run.launch.config import disclosure

    attention = (
        info.get("enable_dp_attention") is True
    )  # its data parallel ranks are among the tensor parallel ones
    said.parallel = _sizes(
        info, tp="tp_size", pp="pp_size", **({} if attention else {"dp": "dp_size"})
    )
    said.config |= disclosure.disclosed_arguments(
        _plain({k: v for k, v in info.items() if k != "internal_states"})
    )


_FLAGS: Final = {
    "tp": ("--tensor-parallel-size", "-tp", "--tp-size", "--tp", "--tp_size"),
    "pp": ("--pipeline-parallel-size", "-pp", "--pp-size", "--pp", "--pp_size"),
    "dp": ("--data-parallel-size", "-dp", "--dp-size", "--dp"),
}
_CHANGES: Final = {
    "--quantization": "quantization",
    "-q": "quantization",
    "--hf-overrides": "hf_overrides",
    "--config": "config",
    "--speculative-config": "speculative_config",
    "--speculative-algorithm": "speculative_algorithm",
    "--json-model-override-args": "json_model_override_args",
    "--kv-cache-dtype": "kv_cache_dtype",
    "--enable-expert-parallel": "enable_expert_parallel",
    "--ep-size": "ep_size",
}
"""Options that change what each rank of a server computes of its model."""
_PLACES: Final = ("--max-num-seqs", "--max-running-requests", "--max-batch-size")
_VARIABLES: Final = ("VLLM_TORCH_PROFILER_DIR", "SGLANG_TORCH_PROFILER_DIR")


def _of_process(port: int, said: About) -> None:
    """What the command line and the environment of the process tell that listens at a port of
    this machine.
    """
    try:
        import psutil
    except ImportError:
        return
    try:
        listening = [
            c
            for c in psutil.net_connections("tcp")
            if c.status == psutil.CONN_LISTEN and c.laddr[1:] == (port,)
        ]
        process = psutil.Process(next(c.pid for c in listening if c.pid))
        words, variables = process.cmdline(), process.environ()
    except (psutil.Error, StopIteration, OSError):
        return
    said.pid = process.pid
    given = _options(words)
    profiler = given.get("--profiler-config")
    try:
        config = json.loads(profiler) if profiler else {}
    except (ValueError, RecursionError):
        config = {}
    folder = _mapping(config).get("torch_profiler_dir") or given.get(
        "--profiler-config.torch_profiler_dir"
    )
    folder = folder or next((variables[name] for name in _VARIABLES if name in variables), None)
    if folder and not said.folder:
        said.folder = str(folder)
    if not said.parallel and given:
        sizes = {
            size: int(number)
            for size, flags in _FLAGS.items()
            if (number := next((given[flag] for flag in flags if flag in given), "")).isdigit()
        }
        # without an option the size is 1; a configuration in a file may say something else
        said.parallel = {} if "--config" in given else {"tp": 1, "pp": 1} | sizes
    places = next((given[flag] for flag in _PLACES if flag in given), "")
    if places.isdigit():
        said.config["max_num_seqs"] = int(places)
    said.config |= {
        key: given[flag]
        for flag, key in _CHANGES.items()
        if flag in given and key not in said.config
    }
    said.told_by.append("its process")


def _options(words: list[str]) -> dict[str, str]:
    """Options of a command line with their values; vLLM takes ``_`` for ``-``."""
    given = {}
    for word, following in zip(words, [*words[1:], ""], strict=True):
        name, equals, value = word.partition("=")
        if name.startswith("-"):
            name = name.replace("_", "-") if "." not in name else name
            given[name] = value if equals else following
    return given


def _sizes(values: Mapping[str, Any], **names: str) -> dict[str, int]:
    return {
        size: value
        for size, name in names.items()
        if isinstance(value := values.get(name), int)
        and not isinstance(value, bool)
        and 0 < value <= MOST_RANKS
    }


def _plain(values: Mapping[str, Any]) -> dict[str, Any]:
    """The values that are single numbers or short texts: the rest of a configuration says
    little.
    """
    return {
        name: value
        for name, value in values.items()
        if isinstance(value, bool | int | float) or (isinstance(value, str) and len(value) < _SHOWN)
    }


def _mapping(value: Any) -> Mapping[str, Any]:
    return value if isinstance(value, Mapping) else {}


def _first(value: Any) -> Mapping[str, Any]:
    return _mapping(value[0]) if isinstance(value, list) and value else {}


def _text(value: Any) -> str | None:
    return value if isinstance(value, str) and value else None
