// SPDX-License-Identifier: Apache-2.0
// A pipeline over frames of a video, in several threads, with OpenCV's allocator and with one of tessera.
//   example_opencv                           checks the allocator, and that both give the same images
//   example_opencv compare [FRAMES [RUNS [SCALE]]]
//                    prints medians of interleaved runs, each in a process of its own; frames are SCALE times as wide
#include <algorithm>
#include <array>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include <opencv2/core.hpp>
#include <opencv2/imgproc.hpp>

#include <tessera/concurrent/locked.hpp>
#include <tessera/provider/host_pinned.hpp>
#include <tessera/tessera.hpp>

#include "mat_allocator.hpp"

namespace {

using namespace tessera::literals;
using tessera::provider::host_pinned;

// Blocks of any multiple of 512 bytes, cut from segments. Frees in host memory are complete at once.
using recipe = tessera::recipe::with<tessera::recipe::pinned_packed, tessera::policy::reuse_immediately,
                                     tessera::policy::split_if_remainder_at_least<512>>;
using pool_type =
    tessera::interop::rethrowing<tessera::concurrent::locked<tessera::caching_allocator<recipe, host_pinned>>,
                                 opencv::no_memory>;
using matrices_type = opencv::mat_allocator<pool_type>;

/// Neither is destroyed, because matrices may be static.
pool_type& pool() {
  static auto* const memory = new pool_type(host_pinned({.pin = host_pinned::pinning::never}));
  return *memory;
}
matrices_type& matrices() {
  static auto* const allocator = new matrices_type(pool());
  return *allocator;
}

/// Sizes of one camera's frames.
struct camera {
  cv::Size size;
  int number;
};

/// The frame at a time: a picture of gradients under moving circles.
cv::Mat make_frame(const camera& from, int time) {
  cv::Mat frame(from.size, CV_8UC3);
  for (int y = 0; y < frame.rows; ++y) {
    auto* const row = frame.ptr<cv::Vec3b>(y);
    for (int x = 0; x < frame.cols; ++x)
      row[x] = {static_cast<uchar>(x + time), static_cast<uchar>(y - time), static_cast<uchar>((x ^ y) >> 1)};
  }
  for (int i = 0; i < 8; ++i) {
    const cv::Point at((i * 211 + time * 13) % frame.cols, (i * 97 + time * 7) % frame.rows);
    cv::circle(frame, at, 20 + 5 * i, {i * 30.0, 255.0 - i * 20, 128.0}, cv::FILLED);
  }
  return frame;
}

/// Mixes the bytes of an image into a checksum.
std::uint64_t mix(std::uint64_t sum, const cv::Mat& image) {
  for (int y = 0; y < image.rows; ++y) {
    const uchar* const row = image.ptr(y);
    const std::size_t bytes = static_cast<std::size_t>(image.cols) * image.elemSize();
    for (std::size_t i = 0; i < bytes; ++i) sum = (sum ^ row[i]) * 0x100000001b3;
  }
  return sum;
}

/// Finds what moves between two frames, and the edges of a turned view.
std::uint64_t process(const cv::Mat& frame, cv::Mat& last_gray) {
  cv::Mat half, smooth, gray, edges, turned, moved;
  cv::resize(frame, half, {}, 0.5, 0.5, cv::INTER_AREA);
  cv::GaussianBlur(half, smooth, {5, 5}, 1.2);
  cv::cvtColor(smooth, gray, cv::COLOR_BGR2GRAY);
  cv::Canny(gray, edges, 40, 120);
  const cv::Point2f middle(static_cast<float>(gray.cols) / 2, static_cast<float>(gray.rows) / 2);
  cv::warpAffine(smooth, turned, cv::getRotationMatrix2D(middle, 7, 1.1), smooth.size());
  std::vector<cv::Mat> pyramid;
  cv::buildPyramid(turned, pyramid, 4);
  if (last_gray.size() == gray.size()) cv::absdiff(gray, last_gray, moved);
  last_gray = gray;
  return mix(mix(mix(0xcbf29ce484222325, edges), pyramid.back()), moved);
}

/// Each thread has a camera of its own size. Returns the checksum of all results.
std::uint64_t run(int frames, int scale) {
  cv::setNumThreads(1);  // the cameras are the threads
  static const std::array<camera, 3> cameras = {{{{1920, 1080}, 0}, {{1280, 720}, 1}, {{1600, 896}, 2}}};
  std::array<std::uint64_t, cameras.size()> sums{};
  std::vector<std::thread> running;
  for (const camera& from : cameras)
    running.emplace_back([&from, &sums, frames, scale] {
      const camera scaled{from.size * scale, from.number};
      cv::Mat last_gray;
      std::uint64_t sum = 0;
      for (int time = 0; time < frames; ++time) sum = sum * 31 + process(make_frame(scaled, time), last_gray);
      sums[static_cast<std::size_t>(from.number)] = sum;
    });
  for (std::thread& thread : running) thread.join();
  std::uint64_t all = 0;
  for (const std::uint64_t sum : sums) all = all * 37 + sum;
  return all;
}

/// The cost of one run.
struct cost {
  double wall_ms = 0, processor_ms = 0;  ///< per frame of each camera
  double faults = 0;                     ///< page faults per frame of each camera
  double peak_mib = 0;                   ///< maximum resident memory
  std::uint64_t sum = 0;
};

double milliseconds(const timeval& time) {
  return static_cast<double>(time.tv_sec) * 1e3 + static_cast<double>(time.tv_usec) / 1e3;
}

cost measure(int frames, int scale) {
  rusage before{}, after{};
  ::getrusage(RUSAGE_SELF, &before);
  const auto began = std::chrono::steady_clock::now();
  cost found;
  found.sum = run(frames, scale);
  const std::chrono::duration<double, std::milli> wall = std::chrono::steady_clock::now() - began;
  ::getrusage(RUSAGE_SELF, &after);
  found.wall_ms = wall.count() / frames;
  found.processor_ms = (milliseconds(after.ru_utime) + milliseconds(after.ru_stime) -
                        milliseconds(before.ru_utime) - milliseconds(before.ru_stime)) /
                       frames;
  found.faults = static_cast<double>(after.ru_minflt - before.ru_minflt) / frames;
  found.peak_mib = static_cast<double>(after.ru_maxrss) / 1024;
  return found;
}

/// Measures in a child process, so that runs share no memory. Returns false if the child fails.
bool measure_apart(bool with_tessera, int frames, int scale, cost& found) {
  std::array<int, 2> ends{};
  if (::pipe(ends.data()) != 0) return false;
  const pid_t child = ::fork();
  if (child == 0) {
    if (with_tessera) cv::Mat::setDefaultAllocator(&matrices());
    const cost own = measure(frames, scale);
    ::_exit(::write(ends[1], &own, sizeof own) == sizeof own ? 0 : 1);
  }
  ::close(ends[1]);
  const bool is_read = child > 0 && ::read(ends[0], &found, sizeof found) == sizeof found;
  ::close(ends[0]);
  int status = 1;
  return child > 0 && ::waitpid(child, &status, 0) == child && status == 0 && is_read;
}

double median(const std::vector<cost>& runs, double cost::* of) {
  std::vector<double> values;
  for (const cost& run : runs) values.push_back(run.*of);
  std::sort(values.begin(), values.end());
  return values[values.size() / 2];
}

int compare(int frames, int runs, int scale) {
  if (frames < 1 || runs < 1 || scale < 1) return std::puts("a number must be at least 1"), 1;
  std::array<std::vector<cost>, 2> found;
  for (int i = 0; i < 2 * runs; ++i) {
    const bool with_tessera = i % 2 == 1;
    cost one;
    if (!measure_apart(with_tessera, frames, scale, one)) return std::puts("a run failed"), 1;
    found[with_tessera ? 1 : 0].push_back(one);
  }
  if (found[0][0].sum != found[1][0].sum) return std::puts("the images differ"), 1;
  std::printf("%d frames of 3 cameras, the largest %d x %d, medians of %d runs\n", frames, 1920 * scale,
              1080 * scale, runs);
  std::printf("%-10s %14s %19s %12s %19s\n", "allocator", "wall, ms/frame", "processor, ms/frame",
              "faults/frame", "peak resident, MiB");
  for (std::size_t i = 0; i < 2; ++i)
    std::printf("%-10s %14.1f %19.1f %12.0f %19.1f\n", i == 0 ? "OpenCV's" : "tessera",
                median(found[i], &cost::wall_ms), median(found[i], &cost::processor_ms),
                median(found[i], &cost::faults), median(found[i], &cost::peak_mib));
  return 0;
}

/// Prints the rule if it does not hold.
bool holds(bool rule, const char* text) {
  if (!rule) std::printf("not true: %s\n", text);
  return rule;
}

std::size_t live() { return pool().current_usage().allocated; }

/// Matrices that share, outlive and return memory.
bool keeps_references() {
  cv::Mat whole(100, 33, CV_8UC3);
  const cv::Mat part = whole(cv::Rect(1, 1, 10, 10)), clone = part.clone();
  bool good = holds(whole.u->currAllocator == &matrices(), "the default allocator serves");
  good &= holds(reinterpret_cast<std::uintptr_t>(whole.data) % 64 == 0, "memory is aligned to 64 bytes");
  good &= holds(whole.u->refcount == 2 && whole.isContinuous(), "a part shares the memory");
  good &= holds(clone.u->refcount == 1 && clone.u != part.u, "a clone has memory of its own");
  whole.release();
  good &= holds(part.u->refcount == 1 && live() > 9900, "the part keeps the memory");
  const int sizes[] = {3, 4, 5};
  const cv::Mat cube(3, sizes, CV_32F, cv::Scalar(1));
  good &= holds(cube.step[0] == 80 && cube.step[1] == 20 && cube.step[2] == 4, "steps have no gaps");
  return holds(cv::sum(cube)[0] == 60, "a matrix of three dimensions is filled") && good;
}

/// Memory of the user is neither taken nor freed, whether a matrix or an array for a device refers to it.
bool leaves_users_memory() {
  const std::size_t before = live();
  std::array<uchar, 64> bytes{};
  {
    cv::Mat view(4, 10, CV_8U, bytes.data(), 16);
    cv::UMat device = view.getUMat(cv::ACCESS_RW);
    device.setTo(7);
    cv::Mat mapped = device.getMat(cv::ACCESS_READ);
    if (!holds(mapped.at<uchar>(3, 9) == 7, "the mapped array has the values")) return false;
  }
  return holds(bytes[0] == 7 && bytes[10] == 0 && bytes[48] == 7,
               "the user's memory is written row by row") &&
         holds(live() == before, "the user's memory is not counted");
}

/// An array for a device shares its memory with matrices that map it, and returns the memory after them.
bool maps_arrays() {
  const std::size_t before = live();
  {
    cv::UMat device(50, 50, CV_32F, cv::Scalar(2)), same = device;
    cv::Mat mapped = device.getMat(cv::ACCESS_RW);
    if (!holds(mapped.u == device.u && live() - before < 20000, "a mapping copies nothing")) return false;
    mapped.at<float>(1, 1) = 5;
    mapped.release();
    device.release();
    if (!holds(live() > before && cv::sum(same)[0] == 5003, "a copy keeps the memory")) return false;
  }
  return holds(live() == before, "the memory returns after the last reference");
}

/// Too large a matrix throws OpenCV's exception and changes nothing.
bool reports_full_memory() {
  const std::size_t before = live();
  cv::Mat image(10, 10, CV_8U);
  for (const int height : {1 << 20, 1 << 30}) {
    try {
      image.create(height, 1 << 30, CV_64FC4);
      return holds(false, "memory for 2^60 bytes is refused");
    } catch (const cv::Exception& error) {
      if (!holds(error.code == cv::Error::StsNoMem, "the exception is for full memory")) return false;
    }
  }
  image.create(10, 10, CV_8U);
  image.release();
  return holds(live() == before, "a failed request leaves no memory");
}

int check() {
  constexpr int frames = 4;
  const std::uint64_t expected = run(frames, 1);
  cv::MatAllocator* const own = cv::Mat::getDefaultAllocator();
  cv::Mat::setDefaultAllocator(&matrices());
  bool good = keeps_references() && leaves_users_memory() && maps_arrays() && reports_full_memory();
  good &= holds(run(frames, 1) == expected, "both allocators give the same images");
  cv::Mat::setDefaultAllocator(own);
  const auto counted = pool().statistics();
  const auto requests = static_cast<long long>(counted.all.allocation.allocated);
  good &= holds(requests > 3 * frames * 10, "each frame is served");
  good &= holds(counted.num_device_alloc * 2 < static_cast<std::uint64_t>(requests), "most memory is reused");
  good &= holds(live() == 0 && pool().audit() == nullptr, "no memory is lost");
  std::printf("%lld requests from %llu segments, peak reserved %lld MiB, checksum %016llx\n", requests,
              static_cast<unsigned long long>(counted.num_device_alloc),
              static_cast<long long>(counted.all.reserved_bytes.peak >> 20),
              static_cast<unsigned long long>(expected));
  return good ? 0 : 1;
}

}  // namespace

int main(int count, char** arguments) {
  const auto number = [=](int at, int standard) { return count > at ? std::atoi(arguments[at]) : standard; };
  if (count > 1 && std::strcmp(arguments[1], "compare") == 0)
    return compare(number(2, 60), number(3, 7), number(4, 1));
  return check();
}
