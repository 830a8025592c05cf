"""A stand-in for ``vllm serve``: answers like it, from the standard library, and writes down
what it was asked.
"""

import http.server
import json
import os
import subprocess
import sys
import time
from pathlib import Path

HOW = json.loads(os.environ.get("STAND_IN_VLLM", "{}"))


def called(what, **values):
    with Path(os.environ["STAND_IN_CALLS"]).open("a") as file:
        file.write(json.dumps({"what": what, **values}) + "\n")


class Handler(http.server.BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def log_message(self, *args):
        pass

    def answer(self, text, status=200):
        data = text.encode()
        self.send_response(status)
        self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)

    def do_GET(self):
        metrics = 'vllm:cache_config_info{block_size="16",num_gpu_blocks="100"} 1.0\nvllm:kv_cache_usage_perc{e="0"} 0.25\n'
        self.answer(metrics if self.path == "/metrics" else "", 503 if HOW.get("sick") else 200)

    def do_POST(self):
        body = json.loads(self.rfile.read(int(self.headers.get("Content-Length") or 0)) or b"{}")
        called(self.path, body=body, port=self.server.server_port)
        if self.path != "/v1/completions":
            self.answer('{"results": [3]}')
        elif HOW.get("refuses"):
            self.answer('{"error": "no such model"}', 404)
        elif "stream" not in body:
            self.prefill(body)
        else:
            self.stream(body)

    def prefill(self, body):
        if HOW.get("prefill_dies") == len(self.server.prefilled):
            os._exit(7)
        self.server.prefilled.append(body["prompt"])
        self.answer(json.dumps({"kv_transfer_params": {"remote_block_ids": body["prompt"]}}))

    def stream(self, body):
        self.send_response(200)
        self.send_header("Transfer-Encoding", "chunked")
        self.end_headers()
        for n in range(1, body["max_tokens"] + 1):
            if HOW.get("dies"):
                sys.stdout.write(
                    "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2 GiB" + "\n"
                )
                sys.stdout.flush()
                os._exit(1)
            time.sleep(HOW.get("token_s", 0.0))
            choice = {
                "text": "",
                "token_ids": [n],
                "finish_reason": "length" if n == body["max_tokens"] else None,
            }
            usage = {"prompt_tokens": len(body["prompt"]), "completion_tokens": n}
            self.chunk(f"data: {json.dumps({'choices': [choice], 'usage': usage})}\n\n")
        self.chunk("data: [DONE]\n\n")
        self.wfile.write(b"0\r\n\r\n")

    def chunk(self, text):
        self.wfile.write(f"{len(text):x}\r\n{text}\r\n".encode())
        self.wfile.flush()


def main():
    known = {
        name: os.environ.get(name)
        for name in ("CUDA_VISIBLE_DEVICES", "VLLM_NIXL_SIDE_CHANNEL_PORT")
    }
    called("serve", argv=sys.argv[1:], dev=os.environ.get("VLLM_SERVER_DEV_MODE"), known=known)
    if HOW.get("exits"):
        sys.stdout.write(HOW["exits"] + "\n")
        sys.stdout.flush()
        sys.exit(1)
    child = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"])
    called("child", pid=child.pid)
    port = int(sys.argv[sys.argv.index("--port") + 1])
    server = http.server.ThreadingHTTPServer(("127.0.0.1", port), Handler)
    server.prefilled = []
    server.serve_forever()


if __name__ == "__main__":
    try:
        main()
    except KeyboardInterrupt:
        called("interrupted")
