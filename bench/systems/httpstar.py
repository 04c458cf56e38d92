"""HTTP star: nginx on the trainer, curl on every worker, all at once."""

from __future__ import annotations

import asyncio
import json
import time
from pathlib import Path

from bench.systems.common import Course, Field, Outcome, Payload
from bench.systems.programs import needs_program, program

PORT = 8080
_CONFIG = """
daemon off;
worker_processes 1;
error_log {folder}/error.log;
pid {folder}/nginx.pid;
events {{ worker_connections 256; }}
http {{
  access_log off;
  sendfile on;
  tcp_nopush on;
  client_body_temp_path {folder}/body;
  proxy_temp_path {folder}/proxy;
  fastcgi_temp_path {folder}/fastcgi;
  uwsgi_temp_path {folder}/uwsgi;
  scgi_temp_path {folder}/scgi;
  server {{ listen {port}; root {root}; }}
}}
"""


class HttpStar:
    """One stream from the trainer to each worker."""

    key = "http-star"
    title = "HTTP star (nginx, curl)"

    def missing(self) -> str | None:
        return needs_program("nginx", "nginx-light") or needs_program("curl", "curl")

    async def run(self, course: Course, payload: Payload, directory: Path) -> Outcome:
        async with Field(course, directory) as ground:
            folder = ground.folder("trainer")
            config = folder / "nginx.conf"
            config.write_text(_CONFIG.format(folder=folder, root=payload.path.parent, port=PORT))
            folder.chmod(0o755)
            await ground.start("trainer", program("nginx"), "-c", str(config), "-g", "user root;")
            await ground.wait_listening("trainer", PORT)
            helpers = {name: await ground.start_timed(name) for name in course.names}
            copies = {name: ground.folder(name) / payload.path.name for name in course.names}
            url = f"http://{ground.address('trainer')}:{PORT}/{payload.path.name}"
            meter, start_s = ground.meter(), time.monotonic()
            for name, helper in helpers.items():
                helper.tell(json.dumps([program("curl"), "-sS", "-f", "-o", str(copies[name]), url]))
            done = await asyncio.gather(*(helper.done_s() for helper in helpers.values()))
            times = dict(zip(helpers, done, strict=True))
            return await ground.outcome(self.key, start_s, times, meter.read(payload.size_bytes), payload, copies)
