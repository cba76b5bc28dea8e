"""When a program may compute: the points of its loop, holding a turn, waiting for it, handing it on."""
