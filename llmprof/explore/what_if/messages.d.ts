// Written from the messages and traits of the widget by `make bundles`. Do not edit.
import type { Model as AnyModel } from "../base/js/model";

/** A change that can be made: its word, what it is, what it takes, and why it cannot be made of this recording. */
export type Offer = {
  name: string;
  title: string;
  words: string;
  fields: ChangeField[];
  why?: string;
};

/** What a change takes: work of the devices, a text, a number with its slider, or one of several words. */
export type ChangeField = {
  name: string;
  kind: "choice" | "number" | "text" | "work";
  label: string;
  value: string;
  keyword?: boolean;
  optional?: boolean;
  host?: boolean;
  low?: number;
  high?: number;
  step?: number;
  unit?: string;
  options?: [string, string][];
};

/** Time of a step of a phase (ns): as recorded, as predicted, and between what; and the gain. */
export type Predicted = {
  phase: string | null;
  steps: number;
  recorded_ns: number;
  predicted_ns: number;
  low_ns: number;
  high_ns: number;
  gain_ns: number;
  gain_low_ns: number;
  gain_high_ns: number;
  speedup: number;
};

/** A change that was asked for: in words, what it cannot know, and why it could not be made. */
export type Made = {
  change: string;
  words: string;
  unknown: string;
  error?: string;
};

export type Messages = {
  selection: {
    asks: Record<string, never>;
    answers: { file: string; content: string };
  };
  choices: {
    asks: Record<string, never>;
    answers: { offers: Offer[]; works: [string, string][]; why: string };
  };
  predict: {
    asks: { changes: string[] };
    answers: { rows: Predicted[]; made: Made[]; words: string; python: string; command: string };
  };
};

export type Traits = {
  busy: string;
  changes: string[];
  colours: Record<string, any>;
  kernel: string | null;
  layer: number | null;
  only: Record<string, any>;
  rank: number | null;
  stage: string | null;
  step: number | null;
  theme: "auto" | "light" | "dark";
  window: [number, number] | null;
};

export type Model = AnyModel<Traits, Messages>;
