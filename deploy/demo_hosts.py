#!/usr/bin/python3
"""Trains the same network on one host and on several, and compares the weights to the bit.

The hosts are network namespaces of this machine (hosts.py) with a daemon each, which share a new
cluster key. Each host has two of the processes. Part of deploy/demo, which builds what is needed.

    demo_hosts.py HOSTS
"""

import pathlib
import signal
import sys
import tempfile

import hosts
import train_digits

RANKS_PER_HOST = 2


def say(text):
    print(f"\n== {text}", flush=True)


def plural(count, one):
    return f"{count} {one}{'s' * (count != 1)}"


class Job:
    """The training, on the hosts of some daemons; the first makes the communicator's id."""

    def __init__(self, directory, world_size):
        self._directory, self._world_size = directory, world_size

    def run(self, name, daemons):
        """Trains with as many ranks on each host, consecutive ones; returns the weights' bytes."""
        weights = self._directory / f"{name}.weights"
        options = train_digits.parse(
            ["--socket", str(daemons[0].socket), "--save", str(weights),
             "--world-size", str(self._world_size), "--daemons", str(len(daemons))]
        )  # fmt: skip
        share = self._world_size // len(daemons)
        places = iter([daemon for daemon in daemons for _ in range(share)])

        def start(command):
            daemon = next(places)
            return daemon.host.start(*command, "--socket", daemon.socket)

        if not train_digits.launch(options, start):
            sys.exit(f"demo_hosts: the training on {plural(len(daemons), 'host')} failed")
        return weights.read_bytes()


def show_status(daemon):
    """All but the sessions: there is only the one that asks."""
    print(daemon.control("status").partition("\n\nSESSION")[0], end="\n\n")


def demonstrate(count, directory):
    """Returns whether the weights are the same."""
    job = Job(directory, RANKS_PER_HOST * count)
    key = hosts.new_key(directory / "cluster-key")
    with hosts.Hosts(count) as made:
        say(f"Starting a daemon on each of {plural(count, 'host')}, with a new cluster key")
        daemons = [hosts.Daemon(host, directory, key) for host in made]
        for daemon in daemons:
            print(f"{daemon.host.name}: process {daemon.process.pid}, {daemon.settings['listen']}")

        say(f"Training on {daemons[0].host.name} alone")
        alone = job.run("alone", daemons[:1])
        say(f"Training on all of {plural(count, 'host')}, {RANKS_PER_HOST} processes on each")
        together = job.run("together", daemons)

        say("What the daemons say about each other")
        for daemon in daemons:
            show_status(daemon)
        ended_well = not any([daemon.stop() for daemon in daemons])

    same = alone == together
    print(f"The {len(alone)} bytes of weights from {plural(count, 'host')} are"
          f" {'' if same else 'NOT '}those from one host, to the bit.")  # fmt: skip
    if not ended_well:
        print("A daemon did not end well.")
    return same and ended_well


def main():
    if len(sys.argv) != 2 or not sys.argv[1].isdigit() or not 0 < int(sys.argv[1]) < 100:
        sys.exit("usage: demo_hosts.py HOSTS, 1 to 99")
    reason = hosts.reason_not()
    if reason:
        sys.exit(f"demo_hosts: {reason}")
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    with tempfile.TemporaryDirectory(prefix="ruccl-demo-") as directory:
        return 0 if demonstrate(int(sys.argv[1]), pathlib.Path(directory)) else 1


if __name__ == "__main__":
    try:
        sys.exit(main())
    except KeyboardInterrupt:
        sys.exit(130)
    except RuntimeError as error:
        sys.exit(f"demo_hosts: {error}")
