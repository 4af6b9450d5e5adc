"""What makes scripts run here unchanged: CuTe DSL's launches, cuda.bindings, torch's cuda device, `run`.

What is not served is refused by name."""
