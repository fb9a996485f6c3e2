"""The paper's experiments: what they vary (`experiments`), its numbers (`numbers`), its claims (`shape`), running them
(`perform`) and showing what came of it (`show`, `render`)."""
