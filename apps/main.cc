// fathom: one binary, a subcommand per file.
#include <CLI/CLI.hpp>
#include <algorithm>
#include <cstdio>
#include <iostream>
#include <memory>
#include <sstream>
#include <string>
#include <string_view>
#include <system_error>
#include <utility>
#include <vector>

#include "command_line.h"
#include "commands.h"
#include "usage.h"

namespace {

// Help that fits a terminal: types in a word, descriptions in lines.
class HelpFormatter final : public CLI::Formatter {
 public:
  HelpFormatter() { column_width(kColumn); }

  // Without the "{false}" of flags that set something to false.
  std::string make_option_name(const CLI::Option* option, bool is_positional) const override {
    const std::string name = CLI::Formatter::make_option_name(option, is_positional);
    return name.substr(0, name.find('{'));
  }
  std::string make_option_opts(const CLI::Option* option) const override {
    if (option->get_type_size() == 0) return "";
    const std::string type = option->get_type_name();
    std::string text = " " + type.substr(0, type.find(':'));
    if (!option->get_default_str().empty()) text += "=" + option->get_default_str();
    return option->get_required() ? text + " REQUIRED" : text;
  }
  std::string make_option_desc(const CLI::Option* option) const override {
    return Wrap(option->get_description());
  }
  std::string make_subcommand(const CLI::App* command) const override {
    std::stringstream out;
    CLI::detail::format_help(out, command->get_name(), Wrap(command->get_description()), kColumn);
    return out.str();
  }

 private:
  static constexpr size_t kColumn = 38, kWidth = 100;

  static std::string Wrap(const std::string& text) {
    std::istringstream words(text);
    std::string result, word;
    size_t column = 0;
    while (words >> word) {
      if (column > 0 && column + 1 + word.size() > kWidth - kColumn) {
        result += '\n';
        column = 0;
      } else if (column > 0) {
        result += ' ';
        ++column;
      }
      result += word;
      column += word.size();
    }
    return result;
  }
};

// What was printed may not have gone anywhere: a full disk, a pipe that nobody reads.
int CheckPrinted(int exit_code) {
  std::cout.flush();
  if (std::fflush(stdout) == 0 && std::ferror(stdout) == 0 && std::cout.good()) return exit_code;
  std::cerr << "fathom: the output could not be written whole\n";
  return exit_code == 0 ? 1 : exit_code;
}

}  // namespace

int main(int argc, char** argv) {
  CLI::App app("fathom runs DeepSeek models: fathom COMMAND --help says what a command takes.",
               "fathom");
  app.formatter(std::make_shared<HelpFormatter>());
  app.set_version_flag("--version", "fathom " FATHOM_VERSION, "Print the version");
  app.set_help_flag("-h,--help", "Print this help");
  app.require_subcommand(1);
  int exit_code = 0;
  fathom::AddServe(app, exit_code);
  fathom::AddGenerate(app, exit_code);
  fathom::AddInspect(app, exit_code);
  fathom::AddPlan(app, exit_code);
  fathom::AddVerify(app, exit_code);
  fathom::AddCompare(app, exit_code);
  fathom::AddBench(app, exit_code);
  if (argc == 1) {
    std::cerr << app.help();
    return 2;
  }
  fathom::Result<fathom::CommandLine> line = fathom::ReadCommandLine(argc, argv, app);
  if (!line.ok()) {
    std::cerr << "fathom: " << line.status().message() << "\n";
    return 2;
  }
  std::reverse(line->arguments.begin(), line->arguments.end());  // as CLI11 takes them
  try {
    app.parse(std::move(line->arguments));
  } catch (const CLI::ParseError& error) {
    exit_code = fathom::ExplainParse(app, error, line->sources);
  } catch (const std::system_error& error) {  // fmt's, of a write that failed
    std::cerr << "fathom: " << error.what() << "\n";
    return 1;
  }
  return CheckPrinted(exit_code);
}
