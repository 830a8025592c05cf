// Written from the messages and traits of the widget by `make bundles`. Do not edit.
import type { Model as AnyModel } from "../base/js/model";

export type Messages = {
  selection: {
    asks: Record<string, never>;
    answers: { file: string; content: string };
  };
  narrow: {
    asks: Record<string, never>;
    answers: Record<string, never>;
  };
  go: {
    asks: { by: -1 | 1 };
    answers: Record<string, never>;
  };
  remove: {
    asks: { name: string };
    answers: Record<string, never>;
  };
  clear: {
    asks: Record<string, never>;
    answers: Record<string, never>;
  };
};

export type Traits = {
  back: boolean;
  busy: string;
  chips: Record<string, any>[];
  colours: Record<string, any>;
  forward: boolean;
  kernel: string | null;
  layer: number | null;
  only: Record<string, any>;
  picked: string;
  rank: number | null;
  stage: string | null;
  step: number | null;
  theme: "auto" | "light" | "dark";
  window: [number, number] | null;
};

export type Model = AnyModel<Traits, Messages>;
