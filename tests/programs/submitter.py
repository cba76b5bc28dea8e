"""Submits short jobs, a few at a time, and waits until all of them are over; says how many ended well."""

import sys

from carpool.client import Client

AT_ONCE = 4

client, count = Client(), int(sys.argv[1])
waiting: list[str] = []
good = 0
for number in range(count):
    waiting.append(client.submit(["true"]).job.id)
    while len(waiting) > AT_ONCE or (waiting and number == count - 1):
        found = client.wait(waiting.pop(0), seconds=600)
        good += found.state == "finished"
    print(f"{number + 1}", flush=True)
print(f"good={good}", flush=True)
