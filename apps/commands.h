// The subcommands of `fathom`, one per file. Each adds itself to the app, and sets the process's
// exit code when it is run.
#pragma once

namespace CLI {
class App;
}

namespace fathom {

void AddServe(CLI::App& app, int& exit_code);
void AddGenerate(CLI::App& app, int& exit_code);
void AddInspect(CLI::App& app, int& exit_code);
void AddPlan(CLI::App& app, int& exit_code);
void AddVerify(CLI::App& app, int& exit_code);
void AddCompare(CLI::App& app, int& exit_code);
void AddBench(CLI::App& app, int& exit_code);

}  // namespace fathom
