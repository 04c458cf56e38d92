"""The loop bench's own parts: its task and learner, its desk, and what is made of its runs."""

from __future__ import annotations

import threading
from multiprocessing.connection import Connection

import numpy as np
import pytest

from bench import loopshow
from bench.looplearner import Desk
from bench.looppolicy import HIDDEN, Answer, expected, initial, prompts_of, reward, sample
from bench.sections import SECTIONS
from chappe import Trajectory


def test_the_policy_has_about_a_million_parameters_and_the_reward_is_verifiable() -> None:
    weights = initial(1)
    assert 900_000 < sum(w.size for w in weights.values()) < 1_100_000
    assert weights["layer1.weight"].shape == (HIDDEN, HIDDEN)
    assert expected((7, 9)) == (6, 2, 3, 9)
    assert reward((7, 9), (6, 2, 3, 9)) == 1.0
    assert reward((7, 9), (6, 0, 3, 0)) == 0.5


def test_an_answer_bears_the_probabilities_of_its_tokens() -> None:
    rng = np.random.default_rng(3)
    weights = initial(3)
    answers = sample(weights, [(1, 2)] * 300, rng)
    shares = np.bincount([a.tokens[0] for a in answers], minlength=10) / len(answers)
    first = {a.tokens[0]: a.logp[0] for a in answers}
    assert sum(np.exp(p) for p in first.values()) == pytest.approx(1, abs=0.1)
    for token, logp in first.items():
        assert shares[token] == pytest.approx(np.exp(logp), abs=0.1)


def test_grpo_learns_the_task_from_its_own_samples() -> None:
    pytest.importorskip("torch")
    from bench.looppolicy import reward_curve

    curve = reward_curve(0, seed=1, steps=80, batch=64, group=8)
    assert loopshow.final(curve) > curve[0] + 0.1
    again = reward_curve(0, seed=1, steps=3, batch=64, group=8)
    assert again == pytest.approx(curve[:3], abs=1e-6)


def test_prompts_come_in_groups() -> None:
    drawn = prompts_of(16, 8, np.random.default_rng(1))
    assert len(drawn) == 16
    assert [len(set(drawn[:8])), len(set(drawn[8:]))] == [1, 1]


def made(version: int, item: int) -> Trajectory:
    return Trajectory("w", version, "s", item, Answer((1, 2), (0, 0, 0, 0), (0.0,) * 4, 0.0))


def ask(worker: Connection, version: int) -> tuple[object, ...]:
    worker.send(("ready", version))
    answer = worker.recv()
    assert isinstance(answer, tuple)
    return answer


def test_what_a_lost_worker_held_is_given_out_again_and_an_old_version_is_sent_to_refresh() -> None:
    made_desk: list[Desk] = []
    port = free_port()
    opening = threading.Thread(target=lambda: made_desk.append(Desk("127.0.0.1", port, 2)))
    opening.start()
    first, second = dial(port), dial(port)
    opening.join()
    desk = made_desk[0]
    desk.open(2, [(1, 2), (3, 4)], 0.5)
    assert ask(first, 1) == ("refresh", 2)
    assert ask(first, 2) == ("work", 0, (1, 2), 0.5)
    first.close()  # with item 0
    given = set()
    for _ in range(2):
        _, item, *_ = ask(second, 2)
        assert isinstance(item, int)
        given.add(item)
        second.send(("made", item, made(2, item)))
    assert given == {0, 1}
    assert [t.sequence for t in desk.take(2)] == [0, 1]
    second.close()
    desk.close()


def free_port() -> int:
    import socket

    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    assert isinstance(port, int)
    return port


def dial(port: int) -> Connection:
    from bench.loopworker import dial as dial_desk

    return dial_desk("127.0.0.1", port)


RUN = {
    "part": "pools",
    "order": {"kappa": 2, "workers": 4},
    "predicted": {
        "kappa": 2,
        "batch": 32,
        "t_train_s": 1.0,
        "t_bcast_s": 0.6,
        "required_per_s": 45.7,
        "mu_per_s": 32.0,
        "bubble": 0.231,
    },
    "measured": {"waits_s": [9, 9, 0.6, 0.6], "periods_s": [11, 11, 2.6, 2.6], "t_bcast_s": [0.6], "rewards": [0.1]},
}


def test_the_table_leaves_the_warm_up_out_and_counts_points() -> None:
    (row,) = loopshow.rows([RUN])
    assert row == ("pools", "0.70 x, kappa 2", "45.7", "32.0", "0.60 / 0.60", "23.1%", "23.1%", "-0.0")


def test_a_fault_is_two_lines_and_the_second_is_predicted_with_a_worker_less() -> None:
    order = {"kappa": 2, "workers": 11, "kill_at": 3}
    measured = {"waits_s": [0] * 3 + [3] + [0.2] * 2, "periods_s": [2] * 3 + [5] + [2.2] * 2, "t_bcast_s": [0.6]}
    run = {**RUN, "part": "fault", "order": order, "measured": measured}
    before, after = loopshow.rows([run])
    assert (before[1], before[6]) == ("0.70 x, kappa 2, before the fault", "0.0%")
    assert (after[1], after[6]) == ("0.70 x, kappa 2, after it", "9.1%")
    assert float(after[5].rstrip("%")) > float(before[5].rstrip("%"))


def test_the_report_has_tables_and_a_picture() -> None:
    pytest.importorskip("matplotlib")
    rewards = {"part": "rewards", "staleness": 3, "curves": [[0.1, 0.9], [0.2, 0.8]]}
    activation = {"part": "activation", "fleets": 2, "random_over_rho": [0.1] * 40}
    report = {"name": "loop", "runs": [RUN, rewards, activation], "parameters": {}}
    tables = SECTIONS["loop"].tables(report)
    assert [len(table.cells) for table in tables] == [1, 1]
    assert "10.0% dearer" in tables[-1].note
    figure = loopshow.draw(report)
    assert len(figure.axes) == 2
