"""``python -m headrace.cli.worker N RELEASE``: a worker of ``headrace serve --workers``; not a verb."""

from __future__ import annotations

import faulthandler
import os
import socket
import sys
import time

import uvloop

from headrace.base import logs
from headrace.cli.announcement import announce
from headrace.server.process import ends_in_time
from headrace.server.server import Server
from headrace.workers import worker
from headrace.workers.messages import Begin


def main() -> int:
    """Serve as the supervisor directs over the socket whose descriptor is the first argument."""

    def set_up(begin: Begin) -> None:
        logs.set_up(begin.config.log_format, begin.config.log_level, serves=True, worker=begin.worker)

    async def tell(serving: Server, begin: Begin) -> None:
        seconds = time.monotonic() - begin.begun
        await announce(serving, begin.shown or begin.models, seconds, as_json=begin.json)

    faulthandler.enable()
    end = socket.socket(fileno=int(sys.argv[1]))
    os.set_inheritable(end.fileno(), False)
    return uvloop.run(ends_in_time(worker.run(end, sys.argv[2], set_up, tell)))


if __name__ == "__main__":
    sys.exit(main())
