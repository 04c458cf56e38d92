"""One publication from this process: an origin, progress on stderr, the result on stdout. For `publish` and `up`."""

from __future__ import annotations

import asyncio
import json
import sys
from collections.abc import Sequence
from pathlib import Path

from chappe.cli.client import CoordinatorAddress, address_of, connect, get_status, tls_files
from chappe.cli.progress import ProgressView, progress_view, summary
from chappe.cli.publish import PublishSettings
from chappe.cli.settings import TlsSettings
from chappe.coordinator.status import publication_json
from chappe.errors import ChappeError
from chappe.logs import configure_logging
from chappe.origin.basefolder import default_cache
from chappe.origin.rollback import Past
from chappe.publication import AsyncPublication
from chappe.publisher import AsyncPublisher
from chappe.v1 import coordinator_pb2 as pb

CANCEL_TIMEOUT_S = 4.0
FOLLOW_RETRY_S = 1.0


async def run_publish(path: Path | None, settings: PublishSettings, tls: TlsSettings, *, as_json: bool = False) -> int:
    """Publish and print the result. Raises the publication's error; when cancelled, cancels the publication."""
    configure_logging(settings.log_format, settings.log_level)
    for flag, address in (("--coordinator", settings.coordinator), ("--listen", settings.listen)):
        address_of(flag, address)
    if settings.advertise is not None:
        address_of("--advertise", settings.advertise)
    publisher = AsyncPublisher(
        settings.coordinator,
        listen=settings.listen,
        data_listen=settings.data_listen,
        streams=settings.streams,
        advertise=settings.advertise,
        uplink=settings.uplink,
        limit_uplink=settings.limit_uplink,
        tls=tls_files(tls),
        insecure=tls.insecure,
        name=settings.name,
        base_cache=base_cache_of(settings.base_cache),
        keep_deltas=settings.keep_deltas,
        encoders=settings.encoders,
    )
    async with publisher:
        publication = await publisher.publish(
            Past(settings.rollback_to or 0) if path is None else path,
            settings.version,
            payload=settings.payload,
            until=settings.until,
            topology=settings.topology,
            chains=settings.chains,
            adapter_of=settings.adapter_of,
        )
        try:
            what = f"going back to version {settings.rollback_to}" if path is None else f"publishing {path}"
            with progress_view(what) as view:
                follower = asyncio.create_task(follow(view, publication, settings.coordinator, tls))
                try:
                    result = await publication.wait()
                finally:
                    follower.cancel()
                    await asyncio.gather(follower, return_exceptions=True)
                await _show_end(view, result.message, settings.coordinator, tls)
        except asyncio.CancelledError:
            await _cancel(publication)
            raise
    print(json.dumps(publication_json(result.message)) if as_json else summary(result.message))
    return 0


def base_cache_of(value: str | None) -> Path | bool:
    """The folder for the base, or False for none."""
    if value is None:
        return default_cache()
    return False if value == "none" else Path(value)


async def follow(view: ProgressView, publication: AsyncPublication, coordinator: str, tls: TlsSettings) -> None:
    """Show the relays as the coordinator sees them, until cancelled. A coordinator that is away is waited for."""
    while True:
        try:
            async with connect(CoordinatorAddress(coordinator=coordinator), tls) as stub:
                async for status in stub.WatchStatus(pb.StatusRequest()):
                    for shown in status.publications:
                        if publication.version is not None and shown.version == publication.version:
                            view.show(shown, status.relays)
        except ChappeError as error:
            print(f"{error}; the publication goes on", file=sys.stderr)
        await asyncio.sleep(FOLLOW_RETRY_S)


async def _show_end(view: ProgressView, publication: pb.PublicationStatus, coordinator: str, tls: TlsSettings) -> None:
    """The last state: the stream of states may have been a moment behind."""
    relays: Sequence[pb.RelayStatus]
    try:
        relays = (await get_status(CoordinatorAddress(coordinator=coordinator), tls)).relays
    except ChappeError:
        relays = ()
    view.show(publication, relays)


async def _cancel(publication: AsyncPublication) -> None:
    """Ctrl-C: tell the fleet, within what a person waits for."""
    try:
        async with asyncio.timeout(CANCEL_TIMEOUT_S):
            await publication.cancel()
    except (ChappeError, TimeoutError) as error:
        print(f"chappe: could not cancel: {error or 'the coordinator does not answer'}", file=sys.stderr)
    else:
        print(f"chappe: version {publication.version or '(not chosen yet)'}: cancelled", file=sys.stderr)
