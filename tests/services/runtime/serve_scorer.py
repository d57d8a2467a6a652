"""Serves a class of scorers.py as a process: serve_scorer.py CLASS OPTIONS-AS-JSON [key=value ...]."""

import json
import sys

import scorers

from guerdon_services.runtime import launch

if __name__ == "__main__":
    kind = getattr(scorers, sys.argv[1])
    service = kind(launch.service_settings(kind.settings_type, sys.argv[3:]))
    sys.exit(launch.run(service, launch.runtime_settings(json.loads(sys.argv[2]))))
