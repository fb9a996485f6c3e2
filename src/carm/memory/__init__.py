"""The two-level episodic memory. `carm.memory.memory.Memory` joins the parts; each part works alone."""
