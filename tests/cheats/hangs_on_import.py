"""Never finishes its import."""
# caught: hang: no import within

import time

while True:
    time.sleep(1)
