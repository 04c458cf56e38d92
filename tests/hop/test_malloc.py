from __future__ import annotations

import platform
import subprocess
import sys


def test_a_process_can_raise_its_thresholds_before_it_imports_grpc() -> None:
    code = (
        "import sys; from chappe.hop.malloc import raise_thresholds; done = raise_thresholds();"
        "assert not any(m == 'grpc' or m.startswith('grpc.') for m in sys.modules); print(done)"
    )
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=60)
    assert result.stdout.strip() == str(platform.libc_ver()[0] == "glibc")
