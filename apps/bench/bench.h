// What the benchmarks share.
#pragma once

#include <boost/json/object.hpp>
#include <span>

namespace CLI {
class App;
}

namespace fathom {

void AddBenchOffline(CLI::App& app, int& exit_code);
void AddBenchServe(CLI::App& app, int& exit_code);

// What a stored result says of its run: command, date (UTC), fathom's version, CPU.
boost::json::object RunRecord();

// REQUIRES: there is one. With an even number of values: the mean of the middle two.
double Median(std::span<const double> values);

}  // namespace fathom
