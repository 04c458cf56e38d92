"""A libtorrent node in its namespace: `ROLE TORRENT SETTINGS FOLDER ADDRESS PEER...`, ROLE seed, super-seed or peer."""

from __future__ import annotations

import json
import sys
import time
from pathlib import Path

import libtorrent as lt


def main() -> None:
    role, torrent, settings, folder, address, *others = sys.argv[1:]
    mask = lt.alert.category_t.status_notification | lt.alert.category_t.error_notification
    session = lt.session(
        json.loads(Path(settings).read_text())
        | {"listen_interfaces": address, "alert_mask": int(mask), "user_agent": "chappe-bench"}
    )
    parameters = lt.add_torrent_params()
    parameters.ti = lt.torrent_info(torrent)
    parameters.save_path = folder
    flags = lt.torrent_flags.disable_dht | lt.torrent_flags.disable_lsd | lt.torrent_flags.disable_pex
    if role != "peer":
        flags |= lt.torrent_flags.seed_mode
    if role == "super-seed":
        flags |= lt.torrent_flags.super_seeding
    parameters.flags = flags  # neither auto-managed nor paused
    _until(session, lt.listen_succeeded_alert)
    handle = session.add_torrent(parameters) if role != "peer" else None
    print("ready", flush=True)
    if not sys.stdin.readline():
        return
    if handle is None:
        handle = session.add_torrent(parameters)
    for other in others:
        host, _, port = other.rpartition(":")
        handle.connect_peer((host, int(port)))
    if role == "peer":
        _until(session, lt.torrent_finished_alert)
        print("done", time.monotonic(), flush=True)
    sys.stdin.read()
    session.pause()
    handle.flush_cache()
    _until(session, lt.cache_flushed_alert)


def _until(session: lt.session, kind: type[lt.alert]) -> None:
    while True:
        session.wait_for_alert(1000)
        for alert in session.pop_alerts():
            if isinstance(alert, kind):
                return
            if isinstance(alert, lt.listen_failed_alert | lt.torrent_error_alert | lt.file_error_alert):
                raise SystemExit(alert.message())


if __name__ == "__main__":
    main()
