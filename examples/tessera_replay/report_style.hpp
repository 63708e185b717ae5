// SPDX-License-Identifier: Apache-2.0
#pragma once

/// The style of a report. The colors of its lines are in svg.hpp.
namespace replay::report {

inline constexpr const char* light_colors =
    "--ground:#fff;--raised:#f6f7f9;--text:#1c2128;--quiet:#5c6670;--grid:#e4e7eb;--edge:#c9cfd6;"
    "--lives:#b9c6d6;--peaks:#dde4ec;--live:#7f99ba;--pending:#e0a800;--kept:#d55e00;--stripe:#f0a46c;"
    "--idle:#e4e7eb;--asleep:#b79ad6;--cached:#f5dcc8;--focus:#0067a6;--accent:#b84a00;color-scheme:light";
inline constexpr const char* dark_colors =
    "--ground:#14171c;--raised:#1c2027;--text:#e6e9ee;--quiet:#9aa3ae;--grid:#2b3038;--edge:#444c56;"
    "--lives:#48576b;--peaks:#2e3846;--live:#6d8bb3;--pending:#e3b341;--kept:#e0692a;--stripe:#8f3c10;"
    "--idle:#323842;--asleep:#7a5fa0;--cached:#5c3f2c;--focus:#58aaf0;--accent:#f0935c;color-scheme:dark";

inline constexpr const char* style = R"css(
*{box-sizing:border-box}
body{margin:0;background:var(--ground);color:var(--text);
  font:15px/1.5 system-ui,-apple-system,"Segoe UI",Roboto,"Helvetica Neue",Arial,sans-serif;
  font-variant-numeric:tabular-nums}
main{max-width:1160px;margin:0 auto;padding:28px 24px 48px}
p{margin:0}
.quiet{color:var(--quiet)}
.top,.bar{display:flex;align-items:center;justify-content:space-between;gap:12px}
.top{color:var(--quiet);font-size:14px;align-items:flex-start}
.top p{overflow-wrap:anywhere}
h1{font-size:27px;line-height:1.25;font-weight:650;letter-spacing:-.012em;margin:14px 0 8px;max-width:34em;
  text-wrap:balance;overflow-wrap:anywhere}
.lead{max-width:62em}
h2{font-size:18px;font-weight:650;margin:0}
h3{font-size:15px;font-weight:650;margin:0;overflow-wrap:anywhere}
section{margin-top:40px}
.bar{margin-bottom:6px}
.tools{display:flex;gap:6px;flex:none}
button{font:inherit;font-size:14px;line-height:1;min-width:32px;height:32px;padding:0 10px;color:var(--text);
  background:var(--raised);border:1px solid var(--edge);border-radius:6px;cursor:pointer}
button:hover{border-color:var(--quiet)}
:focus-visible{outline:2px solid var(--focus);outline-offset:2px;border-radius:4px}
.hint{color:var(--quiet);font-size:13px;margin-bottom:10px}
canvas{display:block;width:100%;touch-action:pan-y}
.chart{position:relative;cursor:crosshair}
.lines{height:320px}
.note{font-size:13px;color:var(--quiet);min-height:20px;margin:6px 0 10px}
.scroll{overflow-x:auto}
table{border-collapse:collapse;font-size:14px;width:100%}
th,td{text-align:right;padding:5px 0 5px 18px;white-space:nowrap;font-weight:400}
th:first-child,td:first-child{text-align:left;padding-left:0}
thead th{color:var(--quiet);font-size:13px;vertical-align:bottom;border-bottom:1px solid var(--edge)}
tbody tr+tr>*{border-top:1px solid var(--grid)}
tr.drawn th{font-weight:650}
.readout{table-layout:fixed;max-width:820px}
.readout th:first-child{width:30%;white-space:normal;overflow-wrap:anywhere}
.swatch{display:inline-block;width:14px;height:3px;margin-right:8px;vertical-align:middle;border-radius:1px}
.box{display:inline-block;width:11px;height:11px;margin:0 6px 0 0;vertical-align:-1px;border-radius:2px}
.key{display:flex;flex-wrap:wrap;gap:4px 18px;font-size:13px;color:var(--quiet)}
.key span{white-space:nowrap}
.panels{display:grid;grid-template-columns:repeat(auto-fit,minmax(300px,1fr));gap:22px 24px;margin-top:28px}
figure{margin:0;min-width:0}
figcaption{font-size:13px;color:var(--quiet);margin-bottom:6px}
figcaption h3{color:var(--text)}
.panel{height:150px}
article{margin-top:26px}
article .chart{margin-top:10px}
article .note{margin:0 0 4px}
.map{height:252px}
.detail{font-size:14px;height:58px;overflow-y:auto;margin:4px 0 8px;padding:6px 10px;border-left:3px solid var(--edge);
  background:var(--raised);overflow-wrap:anywhere}
.pins{max-width:900px}
.pins th:last-child,.pins td:last-child{text-align:left}
.panels+.key{margin-top:12px}
dl{display:grid;grid-template-columns:max-content 1fr;gap:4px 18px;margin:10px 0 0;font-size:14px;max-width:62em}
dt{font-weight:650}
dd{margin:0;color:var(--quiet)}
@media (max-width:600px){
  body{font-size:14px}
  main{padding:18px 14px 36px}
  h1{font-size:21px}
  section{margin-top:32px}
  .lines{height:250px}
  .map{height:392px}
  .detail{height:140px}
  th,td{padding-left:12px}
  .readout{font-size:12px}
  .readout th:first-child{width:38%;font-size:11px}
  .readout tr>*+*{padding-left:4px}
  .readout .swatch{width:10px;margin-right:6px}
  .readout.five{min-width:440px}
  .pins th,.pins td{white-space:normal}
  .panels{grid-template-columns:1fr}
  .panel{height:120px}
  dl{grid-template-columns:1fr;gap:0}
  dd{margin-bottom:8px}
}
@media print{button,.hint{display:none}}
)css";

}  // namespace replay::report
