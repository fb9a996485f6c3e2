"""What the memory costs and what it saves, measured against the plainest code that moves the same bytes.

    carm bench memory                       everything, about ten minutes
    carm bench memory --quick               a rough picture, about a minute
    carm bench memory --only draw train-warm

Every benchmark runs both sides in one process group on one file system, alternating them, because clocks, neighbours
and disks drift: only ratios of what was measured side by side mean something. One module per question:

    swap_path   how fast samples come from storage into RAM
    draw        how fast training gets a batch
    append      what it costs to store a sample, and to open a large store
    training    what a training loop notices of it all

`raw` holds the other sides, `timing` the alternation, `workspace` the files, `sizes` how much of everything, `report`
the results.
"""
