"""Never finishes its import."""
# kind: hangs and crashes
# caught: hang: no import within

import time

while True:
    time.sleep(1)
