"""GPU memory in and out of images, by the CUDA driver's own checkpoints (see docs/decisions/0017).

What the driver is asked is asked in a process of its own (`helper`), since such a call may hang or take its caller down with it. That
process stands by a worker whose GPU it has taken away: should the agent die, it gives the GPU back, or ends the copy that nobody let run.
"""
