"""Whether an advisory is known against a package that CI installs: `make check-deps`.

What comes in: LOCKS, and what pip-audit learns about its packages from the registry. What goes out: a
line for each advisory, and a status: 0 where every package was looked up and nothing is known but what
ACCEPTED names, 1 where something is, 3 where not every package could be looked up. Not handled here: packages
that the locks do not name, and this project's code.
"""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

LOCKS = [Path(__file__).parent / name for name in ("ci.lock", "torch.lock")]

ACCEPTED: dict[str, str] = {}
"""Advisory (its name with pip-audit) -> why it cannot be repaired and what keeps it from harm."""

ELSEWHERE = "Run it where pip-audit reaches the advisories of the registry"


class NotAuditedError(Exception):
    """pip-audit ended without a report."""


def report(locks: Iterable[Path]) -> list[dict[str, Any]]:
    """What pip-audit says of each package that this Python gets of these locks: name, vulns or a skip_reason.

    Raises:
        NotAuditedError: it said nothing.
    """
    words = ["--require-hashes", "--disable-pip", "--format", "json", "--progress-spinner", "off"]
    words += [word for lock in locks for word in ("--requirement", str(lock))]
    said = subprocess.run(["pip-audit", *words], capture_output=True, text=True, check=False)
    try:
        packages: list[dict[str, Any]] = json.loads(said.stdout)["dependencies"]
    except ValueError:
        raise NotAuditedError(said.stderr.strip().rpartition("\n")[2]) from None
    return packages


def verdict(packages: list[dict[str, Any]], accepted: Mapping[str, str]) -> tuple[list[str], int]:
    """The lines that tell what is known against these packages, and the status."""
    known = {each["id"]: (package, each) for package in packages for each in package.get("vulns", ())}
    wrong = [
        f"{package['name']} {package['version']}: {name}, fixed in {each['fix_versions'] or 'no version'}"
        for name, (package, each) in sorted(known.items())
        if name not in accepted
    ]
    if skipped := [package["skip_reason"] for package in packages if "skip_reason" in package]:
        missing = f"{len(skipped)} of {len(packages)} packages could not be looked up"
        return [*wrong, f"{missing}, the first: {skipped[0]}. {ELSEWHERE}"], 1 if wrong else 3
    stale = [
        f"{name} is accepted, but no package has it: take it out" for name in accepted if name not in known
    ]
    if wrong or stale:
        return wrong + stale, 1
    return [f"{len(packages)} packages were looked up, nothing is known but {len(accepted)} accepted"], 0


def main() -> int:
    """Print the lines; the status."""
    try:
        lines, status = verdict(report(LOCKS), ACCEPTED)
    except NotAuditedError as error:
        lines, status = [f"No package was looked up, pip-audit says: {error}. {ELSEWHERE}"], 3
    print(*lines, sep="\n", file=sys.stderr if status else sys.stdout)
    return status


if __name__ == "__main__":
    sys.exit(main())
