// The scripts of every page, one module per concern.
import { calendar } from "./calendar.js";
import { charts } from "./charts.js";
import { controls } from "./controls.js";
import { forms } from "./forms.js";
import { keyboard } from "./keyboard.js";
import { live } from "./live.js";
import { logs } from "./logs.js";
import { times } from "./times.js";

controls();
forms();
keyboard();
times();
calendar();
charts();
logs();
live();
