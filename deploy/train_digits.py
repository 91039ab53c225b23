#!/usr/bin/python3
"""Trains a small network on scikit-learn's handwritten digits, on several processes.

Every process holds its share of the images. Rank 0's first weights are broadcast; in each step the
gradients are averaged with all_reduce, in shared memory; the predictions for the shares of the test
set are gathered. The training is run without a budget and under budgets of 4 KiB and 1 MiB, and the
verdict says whether all of it came out the same, to the bit. Exit status: 0 if so, else 1.

    train_digits.py                 starts the processes and waits for them
    train_digits.py --rank 2 ...    is one of them
"""

import argparse
import hashlib
import os
import subprocess
import sys
import time

# Matrices this small are not worth threads, and the processes share the machine.
os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")

import numpy as np
from sklearn.datasets import load_digits

import ruccl

LAYERS = (64, 64, 10)  # pixels, hidden units, classes
TEST_IMAGES = 357
LEARNING_RATE = np.float32(0.5)
MOMENTUM = np.float32(0.9)
BUDGETS = (None, 4 << 10, 1 << 20)


# ---------------------------------------------------------------- the network


class Network:
    """Two layers whose weights, and gradients, are one flat array each."""

    count = sum((fan_in + 1) * fan_out for fan_in, fan_out in zip(LAYERS, LAYERS[1:]))

    def __init__(self, weights, gradient):
        self.weights = weights
        self.gradient = gradient
        self.velocity = np.zeros_like(weights)

    def initialise(self, seed):
        rng = np.random.default_rng(seed)
        for matrix, bias in self._layers(self.weights):
            matrix[:] = rng.normal(0, np.sqrt(2 / len(matrix)), matrix.shape)
            bias[:] = 0
        self.velocity[:] = 0

    def compute_gradient(self, images, labels):
        """Leaves the gradient of the mean loss over `images`; returns that loss."""
        (matrix1, bias1), (matrix2, bias2) = self._layers(self.weights)
        (dmatrix1, dbias1), (dmatrix2, dbias2) = self._layers(self.gradient)

        hidden = np.maximum(images @ matrix1 + bias1, 0)
        scores = hidden @ matrix2 + bias2
        scores -= scores.max(axis=1, keepdims=True)
        odds = np.exp(scores)
        odds /= odds.sum(axis=1, keepdims=True)
        rows = np.arange(len(labels))
        loss = -np.log(odds[rows, labels]).mean()

        odds[rows, labels] -= 1
        odds /= np.float32(len(labels))
        dmatrix2[:] = hidden.T @ odds
        dbias2[:] = odds.sum(axis=0)
        back = (odds @ matrix2.T) * (hidden > 0)
        dmatrix1[:] = images.T @ back
        dbias1[:] = back.sum(axis=0)
        return loss

    def step(self):
        self.velocity *= MOMENTUM
        self.velocity -= LEARNING_RATE * self.gradient
        self.weights += self.velocity

    def predict(self, images):
        (matrix1, bias1), (matrix2, bias2) = self._layers(self.weights)
        scores = np.maximum(images @ matrix1 + bias1, 0) @ matrix2 + bias2
        return scores.argmax(axis=1)

    @staticmethod
    def _layers(flat):
        start = 0
        for fan_in, fan_out in zip(LAYERS, LAYERS[1:]):
            end = start + fan_in * fan_out
            yield flat[start:end].reshape(fan_in, fan_out), flat[end : end + fan_out]
            start = end + fan_out


class Digits:
    """The images, shuffled once; the training set is cut so that all shares are of one size."""

    def __init__(self, world_size):
        digits = load_digits()
        order = np.random.default_rng(1).permutation(len(digits.target))
        images = (digits.data[order] / 16).astype(np.float32)
        labels = digits.target[order]
        self.share = (len(labels) - TEST_IMAGES) // world_size
        self.test = images[:TEST_IMAGES], labels[:TEST_IMAGES]
        end = TEST_IMAGES + self.share * world_size
        self.train = images[TEST_IMAGES:end], labels[TEST_IMAGES:end]

    def train_share(self, rank):
        rows = slice(rank * self.share, (rank + 1) * self.share)
        return self.train[0][rows], self.train[1][rows]

    def test_share(self, rank, world_size):
        """Shares of one size but for the last, which may be shorter."""
        size = -(-TEST_IMAGES // world_size)
        return self.test[0][rank * size : (rank + 1) * size], size


# ---------------------------------------------------------------- one process of many


class Training:
    """What one run under one budget came to."""

    def __init__(self, budget):
        self.budget = budget
        self.loss = self.accuracy = self.seconds = 0.0
        self.weights = None
        self.stats = None

    @property
    def digest(self):
        return hashlib.sha256(self.weights.tobytes()).digest()


def train(comm, digits, network, budget, steps, show):
    """Runs one training; `show` is called now and then with the step and the Training so far."""
    run = Training(budget)
    if budget is not None:
        comm = comm.bounded(budget)
    images, labels = digits.train_share(comm.rank)
    loss = np.zeros(1, np.float32)
    network.initialise(seed=2 if comm.rank == 0 else None)  # None: as chance will have it
    comm.broadcast(network.weights, root=0)

    began = time.monotonic()
    for step in range(1, steps + 1):
        loss[0] = network.compute_gradient(images, labels)
        work = comm.all_reduce_async(network.gradient, op="mean")
        comm.all_reduce(loss, op="mean")
        work.wait()
        network.step()
        if step % max(1, steps // 25) == 0 or step == steps:
            run.loss = float(loss[0])
            run.accuracy = evaluate(comm, digits, network)
            run.seconds = time.monotonic() - began
            show(step, run)
    run.stats = work.stats()
    run.weights = network.weights.copy()
    return run


def evaluate(comm, digits, network):
    """The share of test images that the ranks together get right."""
    images, size = digits.test_share(comm.rank, comm.world_size)
    predictions = np.full(size, -1, np.int32)
    predictions[: len(images)] = network.predict(images)
    everyones = comm.all_gather(predictions)[:TEST_IMAGES]
    return float((everyones == digits.test[1]).mean())


def run_rank(options):
    """Returns whether the verdict is good; rank 0 shows it."""
    display = Display(options.rank == 0)
    digits = Digits(options.world_size)
    with ruccl.connect(options.socket, name=f"digits {options.rank}") as connection:
        comm = connection.join(
            options.id, options.rank, options.world_size, label="digits", timeout=60
        )
        network = Network(
            connection.empty(Network.count, np.float32), connection.empty(Network.count, np.float32)
        )
        display.title(digits, options)
        runs = [
            train(comm, digits, network, budget, options.steps, display.progress(options.steps))
            for budget in BUDGETS
        ]
        digests = [gather_digests(comm, run) for run in runs]
        comm.leave()
    if options.rank != 0:
        return True
    if options.save:
        runs[0].weights.tofile(options.save)
    return display.verdict(judge(digits, options, runs, digests))


def gather_digests(comm, run):
    digest = np.frombuffer(run.digest, np.uint8)
    return [row.tobytes() for row in comm.all_gather(digest).reshape(comm.world_size, -1)]


# ---------------------------------------------------------------- the verdict


def judge(digits, options, runs, digests):
    """The claims of the verdict, as (whether it holds, what it says)."""
    first = runs[0]
    yield (
        set(digests[0]) == {first.digest},
        f"all {options.world_size} processes hold the same weights, to the bit"
        f"  (sha256 {first.digest.hex()[:16]})",
    )
    for run, gathered in zip(runs[1:], digests[1:]):
        chunk = run.budget // options.world_size // 4
        stats = run.stats
        yield (
            set(gathered) == {first.digest}
            and stats.peak_bytes <= run.budget
            and stats.chunks == -(-Network.count // chunk),
            f"the same bits under a budget of {amount(run.budget)}:"
            f" {plural(stats.chunks, 'chunk')} of at most {chunk} weights,"
            f" {amount(stats.peak_bytes)} staged",
        )

    alone, _ = train_alone(digits, options, shares=options.world_size)
    yield (
        np.array_equal(alone.view(np.uint32), first.weights.view(np.uint32)),
        "the same bits from a single process that adds the shares in ruCCL's order",
    )
    alone, accuracy = train_alone(digits, options, shares=1)
    yield (
        abs(accuracy - first.accuracy) < 1.5 / TEST_IMAGES,
        f"a single process on all images at once reads {accuracy:.1%} of the test set right;"
        f" here {first.accuracy:.1%}",
    )


def train_alone(digits, options, shares):
    """The same training without ruCCL, the gradient averaged over `shares` shares of the images."""
    network = Network(np.zeros(Network.count, np.float32), np.zeros(Network.count, np.float32))
    network.initialise(seed=2)
    images, labels = digits.train
    parts = list(zip(np.split(images, shares), np.split(labels, shares)))
    for _ in range(options.steps):
        gradients = []
        for part in parts:
            network.compute_gradient(*part)
            gradients.append(network.gradient.copy())
        network.gradient[:] = tree_sum(gradients) / np.float32(shares)
        network.step()
    accuracy = (network.predict(digits.test[0]) == digits.test[1]).mean()
    return network.weights, float(accuracy)


def tree_sum(terms):
    """ruCCL's order of additions: split at the largest power of two below the number of terms."""
    if len(terms) == 1:
        return terms[0]
    half = 1 << (len(terms) - 1).bit_length() - 1
    return tree_sum(terms[:half]) + tree_sum(terms[half:])


# ---------------------------------------------------------------- what is shown


class Display:
    """Rank 0's output: a bar for each run on a terminal, a plain line elsewhere."""

    def __init__(self, visible):
        self._visible = visible
        self._terminal = sys.stdout.isatty()
        self._colour = self._terminal and "NO_COLOR" not in os.environ

    def title(self, digits, options):
        self._print(
            f"\n  {self._paint('1', 'Handwritten digits')}"
            f" on {plural(options.world_size, 'process', 'processes')}"
            f" through {plural(options.daemons, 'daemon')}\n"
            f"  {len(digits.train[1])} images to learn from, {digits.share} a process;"
            f" {TEST_IMAGES} to test with\n"
            f"  a network of {'-'.join(map(str, LAYERS))} units: {Network.count} weights,"
            f" {amount(Network.count * 4)} of gradient a step\n"
        )

    def progress(self, steps):
        width = 24

        def show(step, run):
            name = "no budget" if run.budget is None else f"budget {amount(run.budget)}"
            numbers = f"step {step:3}/{steps}   loss {run.loss:.4f}   accuracy {run.accuracy:6.1%}"
            numbers += f"   {run.seconds:4.1f} s"
            if self._terminal:
                full = width * step // steps
                bar = self._paint("36", "━" * full) + self._paint("2", "━" * (width - full))
                self._print(f"\r  {name:12} {bar} {numbers}", end="\n" if step == steps else "")
            elif step == steps:
                self._print(f"  {name:12} {numbers}")

        return show

    def verdict(self, claims):
        """Shows each claim as it is checked; returns whether all hold."""
        self._print(f"\n  {self._paint('1', 'Verdict')}")
        failed = 0
        for holds, text in claims:
            mark = self._paint("32", "✓") if holds else self._paint("31;1", "✗")
            self._print(f"  {mark} {text}")
            failed += not holds
        self._print()
        if failed:
            self._print(f"  {self._paint('31;1', plural(failed, 'claim') + ' failed')}\n")
        return failed == 0

    def _paint(self, code, text):
        return f"\x1b[{code}m{text}\x1b[0m" if self._colour else text

    def _print(self, text="", end="\n"):
        if self._visible:
            print(text, end=end, flush=True)


def amount(nbytes):
    """4096 as "4 KiB"."""
    for unit, size in (("MiB", 1 << 20), ("KiB", 1 << 10)):
        if nbytes >= size:
            return f"{nbytes / size:.3g} {unit}"
    return f"{nbytes} bytes"


def plural(count, one, many=None):
    return f"{count} {one if count == 1 else many or one + 's'}"


# ---------------------------------------------------------------- the processes


def launch(options, start=subprocess.Popen):
    """Starts one process for each rank; returns whether all ended well.

    `start` gets a rank's command and returns its Popen; it may add a --socket, which overrules.
    """
    with ruccl.connect(options.socket, name="digits launcher") as connection:
        id = connection.new_id()
    command = [sys.executable, os.path.abspath(__file__), "--id", id]
    command += ["--world-size", str(options.world_size), "--steps", str(options.steps)]
    command += ["--daemons", str(options.daemons)]
    if options.socket:
        command += ["--socket", str(options.socket)]
    if options.save:
        command += ["--save", str(options.save)]
    ranks = [start([*command, "--rank", str(rank)]) for rank in range(options.world_size)]
    try:
        return all([rank.wait() == 0 for rank in ranks])
    finally:
        for rank in ranks:
            if rank.poll() is None:
                rank.terminate()
                rank.wait()


def parse(arguments=None):
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--world-size", type=int, default=4, help="processes (default: 4)")
    parser.add_argument("--steps", type=int, default=200, help="of each training (default: 200)")
    parser.add_argument("--socket", help="the daemon's (default: $RUCCL_SOCKET, or the system's)")
    parser.add_argument("--daemons", type=int, default=1, help="how many there are, for the title")
    parser.add_argument("--save", help="a file for the weights of the training without a budget")
    parser.add_argument("--rank", type=int, help="be this rank instead of starting all")
    parser.add_argument("--id", help="with --rank: the communicator's id")
    options = parser.parse_args(arguments)
    if (options.rank is None) != (options.id is None):
        parser.error("--rank and --id belong together")
    return options


def main():
    options = parse()
    return 0 if (launch if options.rank is None else run_rank)(options) else 1


if __name__ == "__main__":
    try:
        sys.exit(main())
    except ruccl.Error as error:
        sys.exit(f"train_digits: {error.code.name}: {error}")
