"""`python -m ragged_moe`: bench gemm|layer|experts|parallel|transformers, check gemm|layer|graphs|parallel|peers, model
gemm|layer.
"""

import importlib

import click

COMMANDS = {
    "bench": ("gemm", "layer", "experts", "parallel", "transformers"),
    "check": ("gemm", "layer", "graphs", "parallel", "peers"),
    "model": ("gemm", "layer"),
}


class Group(click.Group):
    """The commands of `ragged_moe.commands` whose names begin with the group's, each imported when it is asked for.

    For a check on an emulated GPU has to install it before CuTe DSL is imported.
    """

    def list_commands(self, ctx: click.Context) -> list[str]:
        return list(COMMANDS[self.name])

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        if cmd_name not in COMMANDS[self.name]:
            return None
        try:
            return importlib.import_module(f"ragged_moe.commands.{self.name}_{cmd_name}").main
        except ModuleNotFoundError as missing:
            said = f"needs {missing.name}, which is not installed"

            def refuse() -> None:
                raise click.ClickException(f"{self.name} {cmd_name} {said}")

            anything = {"ignore_unknown_options": True, "allow_extra_args": True}
            return click.Command(cmd_name, anything, refuse, help=f"Here it {said}.")


@click.group(context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 120})
def cli() -> None:
    """Time, check and model the MoE kernels and layers."""


cli.add_command(Group("bench", help="Time kernels and layers, and their peers, on this GPU."))
cli.add_command(Group("check", help="Check kernels and layers against references, on this GPU or an emulated one."))
cli.add_command(Group("model", help="Model the time of a problem on an emulated GPU; nothing is checked."))

if __name__ == "__main__":
    cli(prog_name="python -m ragged_moe")
