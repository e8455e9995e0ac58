// fathom: one binary, a subcommand per file.
#include <CLI/CLI.hpp>

#include "commands.h"

int main(int argc, char** argv) {
  CLI::App app("fathom runs DeepSeek models: fathom COMMAND --help says what a command takes.",
               "fathom");
  app.set_version_flag("--version", "fathom " FATHOM_VERSION);
  app.require_subcommand(1);
  app.get_formatter()->column_width(38);
  int exit_code = 0;
  fathom::AddServe(app, exit_code);
  fathom::AddGenerate(app, exit_code);
  fathom::AddInspect(app, exit_code);
  fathom::AddVerify(app, exit_code);
  CLI11_PARSE(app, argc, argv);
  return exit_code;
}
