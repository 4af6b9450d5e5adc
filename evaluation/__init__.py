"""The evaluator's command line: a judge that knows the answers, and a process of its own for the submission."""
