import sys

from carm.cli import main

sys.exit(main())
