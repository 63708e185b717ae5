// SPDX-License-Identifier: Apache-2.0
#pragma once

/// The style of a page. The colors of its lines are in svg.hpp.
namespace replay::page {

inline constexpr const char* light_colors =
    "--ground:#fff;--raised:#f6f7f9;--text:#1c2128;--quiet:#5c6670;--grid:#e4e7eb;--edge:#c9cfd6;"
    "--lives:#b9c6d6;--peaks:#dde4ec;--other:#aab2bb;--g0:#4e79a7;--g1:#f28e2b;--g2:#59a14f;--g3:#e15759;--"
    "g4:#b07aa1;--g5:#76b7b2;--g6:#d9b40f;"
    "--g7:#ff9da7;--g8:#9c755f;--g9:#3b5b92;--s0:#b5dcc0;--s1:#6cbfa5;--s2:#3f97ae;--s3:#3d6cae;--s4:#5f4a9f;"
    "--s5:#8a2f7c;--live:#7f99ba;--pending:#e5008f;--kept:#d55e00;--stripe:#f0a46c;"
    "--idle:#e4e7eb;--asleep:#b79ad6;--cached:#f7e6d6;--focus:#0067a6;--accent:#b84a00;color-scheme:light";
inline constexpr const char* dark_colors =
    "--ground:#14171c;--raised:#1c2027;--text:#e6e9ee;--quiet:#9aa3ae;--grid:#2b3038;--edge:#444c56;"
    "--lives:#48576b;--peaks:#2e3846;--other:#6b7480;--g0:#6b9bd1;--g1:#f0a04b;--g2:#6fbf63;--g3:#f0716f;--"
    "g4:#c592bb;--g5:#7fcac3;--g6:#e8c93c;"
    "--g7:#ffb3bb;--g8:#b38b74;--g9:#8fa8dd;--s0:#3c6b50;--s1:#4fa58a;--s2:#4fb3cc;--s3:#6b9be0;--s4:#a48be6;"
    "--s5:#e07fd0;--live:#6d8bb3;--pending:#ff3db0;--kept:#e0692a;--stripe:#8f3c10;"
    "--idle:#323842;--asleep:#7a5fa0;--cached:#5c3f2c;--focus:#58aaf0;--accent:#f0935c;color-scheme:dark";

inline constexpr const char* style = R"css(
*{box-sizing:border-box}
body{margin:0;background:var(--ground);color:var(--text);
  font:15px/1.5 system-ui,-apple-system,"Segoe UI",Roboto,"Helvetica Neue",Arial,sans-serif;
  font-variant-numeric:tabular-nums}
main{max-width:1440px;margin:0 auto;padding:28px 24px 48px}
p{margin:0}
.quiet{color:var(--quiet)}
.top,.bar{display:flex;align-items:center;justify-content:space-between;gap:12px}
section>.bar{flex-wrap:wrap}
.top{color:var(--quiet);font-size:14px;align-items:flex-start}
.top p{overflow-wrap:anywhere}
h1{font-size:27px;line-height:1.25;font-weight:650;letter-spacing:-.012em;margin:14px 0 8px;max-width:34em;
  text-wrap:balance;overflow-wrap:anywhere}
.lead{max-width:62em}
h2{font-size:18px;font-weight:650;margin:0}
h3{font-size:15px;font-weight:650;margin:0;overflow-wrap:anywhere}
section{margin-top:40px}
.bar{margin-bottom:6px}
.tools{display:flex;gap:8px 16px;flex-wrap:wrap;align-items:center}
button{font:inherit;font-size:14px;line-height:1;min-width:32px;height:32px;padding:0 10px;color:var(--text);
  background:var(--raised);border:1px solid var(--edge);border-radius:6px;cursor:pointer}
button:hover{border-color:var(--quiet)}
:focus-visible{outline:2px solid var(--focus);outline-offset:2px;border-radius:4px}
.hint{color:var(--quiet);font-size:13px;margin-bottom:10px}
canvas{display:block;width:100%;touch-action:pan-y}
.chart{position:relative;cursor:crosshair}
.lines{height:240px}
.range{height:30px;margin-top:6px;cursor:grab}
.blocks{height:320px}
.blocks,.lines{cursor:crosshair}
.moment{display:flex;align-items:center;gap:10px}
.moment input{flex:1;min-width:0;margin:0 0 0 84px;accent-color:var(--focus)}
.controls{position:sticky;top:0;z-index:2;background:var(--ground);padding:8px 0 6px;border-bottom:1px solid var(--grid)}
.where{display:block;margin-left:84px;font-size:14px;font-weight:650}
.choice{display:flex;align-items:center;gap:6px;flex-wrap:wrap}
.label{font-size:13px;color:var(--quiet)}
.pressed{display:flex;flex:none}
.pressed button{border-radius:0;margin-left:-1px}
.pressed button:first-child{border-radius:6px 0 0 6px;margin-left:0}
.pressed button:last-child{border-radius:0 6px 6px 0}
.pressed button:only-child{border-radius:6px}
button[aria-pressed=true]{background:var(--text);color:var(--ground);border-color:var(--text)}
.check{font-size:14px;display:flex;align-items:center;gap:4px}
.check .swatch{margin-right:2px}
.find{display:flex;align-items:center;gap:12px;flex-wrap:wrap;margin:2px 0 8px}
.find .hint{margin:0}
input[type=search]{font:inherit;font-size:14px;height:32px;width:300px;max-width:100%;padding:0 10px;color:var(--text);
  background:var(--raised);border:1px solid var(--edge);border-radius:6px}
.legend{display:flex;flex-wrap:wrap;gap:2px 4px;margin-bottom:10px;font-size:13px}
.entry{display:flex;align-items:center;height:26px;padding:0 8px 0 6px;max-width:420px;color:var(--quiet);white-space:nowrap}
button.entry{font-size:13px;background:none;border:1px solid transparent;border-radius:6px;color:var(--text)}
button.entry:hover{border-color:var(--edge)}
button.entry[aria-pressed=true]{border-color:var(--text);background:var(--raised);color:var(--text)}
.entry .name{overflow:hidden;text-overflow:ellipsis;line-height:1.6}
.entry .hint{margin:0 0 0 7px}
.runs{display:grid;gap:18px}
.tip{position:fixed;z-index:5;max-width:min(560px,calc(100vw - 16px));pointer-events:none;padding:8px 12px;font-size:13px;line-height:1.4;
  background:var(--raised);border:1px solid var(--edge);border-radius:8px;box-shadow:0 4px 18px rgba(0,0,0,.18)}
.tip dl,.chosen dl{margin:0;font-size:13px;gap:1px 12px}
.tip dd,.chosen dd{color:var(--text);overflow-wrap:anywhere}
.tip dt,.chosen dt{color:var(--quiet);font-weight:400}
.chosen{position:sticky;bottom:0;z-index:3;margin-top:18px;padding:10px 14px;background:var(--raised);border:1px solid var(--edge);
  border-radius:10px 10px 0 0;box-shadow:0 -4px 18px rgba(0,0,0,.12)}
.calls{margin:8px 0 0;padding:4px 0 0 2.4em;max-height:150px;overflow:auto;font:12px/1.5 ui-monospace,SFMono-Regular,Menlo,Consolas,monospace;
  border-top:1px solid var(--edge);overflow-wrap:anywhere}
.calls li::marker{color:var(--quiet)}
.mapped{display:grid;grid-template-columns:minmax(0,3fr) minmax(0,2fr);gap:8px 28px}
.mapped .chart{margin-top:6px}
.keep{font-size:13px;margin-bottom:12px}
.keep caption{text-align:left;font-weight:650;padding:4px 0 2px}
.keep th,.keep td{padding:3px 0 3px 14px;vertical-align:top}
.keep th:last-child,.keep td:last-child{text-align:left;white-space:normal;overflow-wrap:anywhere;width:60%}
button.link{background:none;border:0;padding:0;height:auto;min-width:0;font-size:inherit;line-height:inherit;color:var(--focus);
  text-align:left;white-space:normal;overflow-wrap:anywhere}
button.link:hover{text-decoration:underline}
[hidden]{display:none!important}
.note{font-size:13px;color:var(--quiet);min-height:20px;margin:6px 0 10px}
.scroll{overflow-x:auto}
table{border-collapse:collapse;font-size:14px;width:100%}
th,td{text-align:right;padding:5px 0 5px 18px;white-space:nowrap;font-weight:400}
th:first-child,td:first-child{text-align:left;padding-left:0}
thead th{color:var(--quiet);font-size:13px;vertical-align:bottom;border-bottom:1px solid var(--edge)}
tbody tr+tr>*{border-top:1px solid var(--grid)}
tr.drawn th{font-weight:650}
th.group{color:var(--quiet);font-size:13px;padding-top:12px}
.readout{table-layout:fixed;max-width:820px}
.readout th:first-child{width:30%;white-space:normal;overflow-wrap:anywhere}
.swatch{display:inline-block;width:14px;height:3px;margin-right:8px;vertical-align:middle;border-radius:1px}
.box{display:inline-block;flex:none;width:11px;height:11px;margin:0 6px 0 0;vertical-align:-1px;border-radius:2px}
.key{display:flex;flex-wrap:wrap;gap:4px 18px;font-size:13px;color:var(--quiet)}
.key span{white-space:nowrap}
figure{margin:0;min-width:0}
figcaption{font-size:13px;color:var(--quiet);margin-bottom:6px}
figcaption h3{color:var(--text)}
article{margin-top:26px}
article .chart{margin-top:10px}
article .note{margin:0 0 4px}
.map{height:410px}
.detail{font-size:14px;height:78px;overflow-y:auto;margin:4px 0 8px;padding:6px 10px;border-left:3px solid var(--edge);
  background:var(--raised);overflow-wrap:anywhere}
dl{display:grid;grid-template-columns:max-content 1fr;gap:4px 18px;margin:10px 0 0;font-size:14px;max-width:62em}
dt{font-weight:650}
dd{margin:0;color:var(--quiet)}
@media (max-width:1000px){
  .mapped{grid-template-columns:minmax(0,1fr)}
}
@media (max-width:600px){
  body{font-size:14px}
  main{padding:18px 14px 36px}
  h1{font-size:21px}
  section{margin-top:32px}
  .lines{height:190px}
  .blocks{height:240px}
  .moment input,.where{margin-left:0}
  .controls{position:static}
  .mapped{grid-template-columns:minmax(0,1fr)}
  .bar{flex-wrap:wrap}
  .tools{flex-wrap:wrap}
  .map{height:392px}
  .detail{height:140px}
  th,td{padding-left:12px}
  .readout{font-size:12px}
  .readout th:first-child{width:38%;font-size:11px}
  .readout tr>*+*{padding-left:4px}
  .readout .swatch{width:10px;margin-right:6px}
  .readout.five{min-width:440px}
  dl{grid-template-columns:1fr;gap:0}
  dd{margin-bottom:8px}
}
@media print{button,.hint{display:none}}
)css";

}  // namespace replay::page
