"""Relays that are not trusted to relay at speed: who becomes one, and who earns its place back.

    trusted ──a repair has shown its uplink to be the limit──▶ demoted ──has sent at the fleet's rate──▶ trusted
                                                                 │        10 s, 20 s, 40 s, ...
                                                                 └──nobody could measure it for 1 h, 2 h, ...──▶ trusted

A demotion changes where a relay is placed next, and nothing about what it is given. What counts for it is what others
say that they received from it, never what it says itself.
"""

from __future__ import annotations

from chappe.core.context import Context
from chappe.core.links import Demotion
from chappe.core.rates import fleet_rate
from chappe.core.reasons import DemotionReason, RedemptionReason
from chappe.core.workers import Worker
from chappe.units import format_rate

EARN_S = 10.0
EARN_MAX_S = 320.0
EARN_SHARE = 0.8  # of the fleet's rate: a link is as fast as the others when measuring cannot tell the difference
SERVE_S = 3600.0
SERVE_MAX_S = 24 * 3600.0


class Demotions:
    def __init__(self, context: Context) -> None:
        self._context = context
        self.news = False
        """Somebody has been demoted, and may be measured once the fleet is idle."""

    def demote(self, worker: Worker, bytes_per_s: float) -> None:
        """Its uplink carried no more than this."""
        times = 1 if worker.demotion is None else worker.demotion.times + (not worker.demotion.active)
        worker.demotion = Demotion(self._context.now, times)
        self.news = True
        self._context.persist_worker(worker)
        self._context.count("relay_demotions_total")
        reason = DemotionReason.SLOW_SENDER.value
        self._context.log("demoted", reason, relay=worker.name, uplink=format_rate(bytes_per_s), times=times)

    def sent(self, worker: Worker, bytes_per_s: float, busy_s: float) -> None:
        """Somebody has received this from it."""
        demotion = worker.demotion
        if demotion is None or not demotion.active:
            return
        config, now = self._context.config, self._context.now
        bar = EARN_SHARE * fleet_rate(self._context.state.relays, config.assumed_bytes_per_s, now)
        demotion.credit_s = demotion.credit_s + busy_s if bytes_per_s >= bar else 0.0
        if demotion.credit_s >= min(EARN_MAX_S, EARN_S * 2 ** (demotion.times - 1)):
            self._redeem(worker, demotion, RedemptionReason.EARNED)

    def review(self, worker: Worker) -> None:
        """Before planning: a demotion does not last for ever where nobody measures."""
        demotion = worker.demotion
        if demotion is None or not demotion.active:
            return
        if self._context.now - demotion.since_s >= min(SERVE_MAX_S, SERVE_S * 2 ** (demotion.times - 1)):
            self._redeem(worker, demotion, RedemptionReason.SERVED)

    def _redeem(self, worker: Worker, demotion: Demotion, reason: RedemptionReason) -> None:
        demotion.active = False
        self._context.persist_worker(worker)
        self._context.log("trusted_again", reason.value, relay=worker.name, times=demotion.times)
