#!/usr/bin/python3
"""systemd understands the units, finds them safe, and the daemon runs as they say."""

import os
import pathlib
import re
import shutil
import subprocess
import sys
import tempfile
import unittest

from tree import BUILD, RUCCLCTL, RUCCLD, SKIP, SOURCE, environment, run

SYSTEMD = SOURCE / "deploy/systemd"
SERVICE = BUILD / "deploy/ruccld.service"
NOBODY = 65534


class Units(unittest.TestCase):
    def setUp(self):
        directory = tempfile.TemporaryDirectory(prefix="ruccl-")
        self.addCleanup(directory.cleanup)
        self.dir = pathlib.Path(directory.name)
        self.text = SERVICE.read_text()

        # where the program has yet to be installed, the one that was built stands for it
        text = re.sub(r"^(ExecStart=)\S+", rf"\1{RUCCLD}", self.text, flags=re.MULTILINE)
        self.service = self.dir / "ruccld.service"
        self.service.write_text(text)
        self.socket = self.dir / "ruccld.socket"
        shutil.copy(SYSTEMD / "ruccld.socket", self.socket)

    def test_are_understood_to_the_last_key(self):
        done = subprocess.run(
            ["systemd-analyze", "verify", "--man=no", self.service, self.socket],
            capture_output=True, text=True,
        )  # fmt: skip
        # an unknown key only gets a warning
        self.assertEqual((done.returncode, done.stderr), (0, ""))

    def test_are_safe(self):
        # of 100; 10 of what counts is the network, which daemons of several nodes need
        run("systemd-analyze", "security", "--offline=true", "--threshold=20", self.service)

    def test_gpus_are_within_reach_and_no_other_devices(self):
        self.assertNotRegex(self.text, r"(?m)^PrivateDevices=(yes|true|1|on)")
        self.assertRegex(self.text, r"(?m)^DevicePolicy=closed$")
        allowed = re.findall(r"^DeviceAllow=(.*)$", self.text, re.MULTILINE)
        self.assertEqual(allowed, ["char-nvidia* rw"])
        self.assertRegex(self.text, r"(?m)^LimitMEMLOCK=infinity$")

    def test_key_is_passed_on_where_there_is_one(self):
        name, _, source = re.search(r"^LoadCredential=(.*)$", self.text, re.M)[1].partition(":")
        self.assertIn(f'"%s/{name}"', (SOURCE / "daemon/config.c").read_text())
        # of a path that is missing the service manager makes a failure, of a name it does not
        self.assertRegex(source, r"^[^/]+$")
        self.assertIn(
            f"/etc/credstore/{source}", (SOURCE / "deploy/man/ruccld.8").read_text(), "the manual"
        )

    def test_user_is_made(self):
        user = re.search(r"^User=(\w+)$", self.text, re.MULTILINE)[1]
        self.assertRegex((SYSTEMD / "ruccl.sysusers.conf").read_text(), rf"(?m)^u {user} ")

    def test_socket_is_where_everybody_looks(self):
        path = re.search(r"^ListenSequentialPacket=(.*)$", self.socket.read_text(), re.M)[1]
        self.assertIn(f"\nEnvironment=RUCCL_SOCKET={path}\n", self.text)
        self.assertIn(f'"{path}"', (SOURCE / "shared/socket_path.c").read_text())

    def test_daemon_serves_the_socket_it_is_handed(self):
        # as the service does: from a user without rights, in an environment with nothing in it
        self.dir.chmod(0o755)
        program = shutil.copy(RUCCLD, self.dir)
        path = self.dir / "activated.sock"
        setting = re.search(r"^Environment=(.*)$", self.text, re.MULTILINE)[1]
        as_nobody = {"user": NOBODY, "group": NOBODY} if os.geteuid() == 0 else {}
        if as_nobody:
            os.chown(self.dir, NOBODY, NOBODY)
        activator = subprocess.Popen(
            ["systemd-socket-activate", "--seqpacket", f"--listen={path}", f"-E{setting}", program],
            env={"PATH": os.environ["PATH"]}, stderr=subprocess.PIPE, text=True, cwd="/",
            extra_groups=[] if as_nobody else None, **as_nobody,
        )  # fmt: skip
        try:
            for line in activator.stderr:
                if line.startswith("Listening on"):
                    break
            status = run(RUCCLCTL, "status", "--json", "--socket", path, env=environment())
        finally:
            activator.terminate()
            said = activator.communicate(timeout=20)[1]
        self.assertIn(f'"pid": {activator.pid}', status)
        self.assertEqual(activator.returncode, 0, said)
        self.assertIn(f"serves {path}", said)
        self.assertTrue(path.is_socket(), "the socket is the service manager's to remove")


if __name__ == "__main__":
    if not shutil.which("systemd-analyze") or not shutil.which("systemd-socket-activate"):
        print("no systemd here")
        sys.exit(SKIP)
    unittest.main()
