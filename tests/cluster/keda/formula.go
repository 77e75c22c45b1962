// Evaluates the formula of a ScaledObject with KEDA's own code.
//
// It is compiled inside KEDA's module. Input: {"scaledObject": ..., "rows": [...]}. A row has the
// values of the triggers by name, and the names of triggers that fail. Output: one line for each
// row, the value that KEDA reports to the autoscaler, or an error, which the autoscaler gets then.
package main

import (
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"sync"

	"github.com/go-logr/logr"
	"k8s.io/api/autoscaling/v2"
	"k8s.io/apimachinery/pkg/api/resource"
	"k8s.io/metrics/pkg/apis/external_metrics"

	kedav1alpha1 "github.com/kedacore/keda/v2/apis/keda/v1alpha1"
	"github.com/kedacore/keda/v2/pkg/fallback"
	"github.com/kedacore/keda/v2/pkg/scaling/cache"
	"github.com/kedacore/keda/v2/pkg/scaling/modifiers"
)

type row struct {
	Values  map[string]float64 `json:"values"`
	Failing []string           `json:"failing"`
}

type input struct {
	ScaledObject kedav1alpha1.ScaledObject `json:"scaledObject"`
	Rows         []row                     `json:"rows"`
}

type answer struct {
	Value *float64 `json:"value,omitempty"`
	Error string   `json:"error,omitempty"`
}

// evaluate does what GetScaledObjectMetrics of KEDA's scale handler does once it has asked the
// triggers: a failing trigger needs a fallback, else the autoscaler gets the error.
func evaluate(object *kedav1alpha1.ScaledObject, compiled *cache.ScalersCache, given row) answer {
	handler := fallback.ScaledObjectHandler{ScaledObject: object, UpdateLock: &sync.RWMutex{}}
	for _, name := range given.Failing {
		failure := errors.New(name + " failed")
		if _, active, err := fallback.GetMetricsWithFallback(handler, nil, failure, name, v2.MetricSpec{}); err != nil {
			return answer{Error: err.Error()}
		} else if active {
			return answer{Error: "a fallback is active"}
		}
	}
	pairs := map[string]string{}
	var metrics []external_metrics.ExternalMetricValue
	for name, value := range given.Values {
		metric := "s-" + name
		found, err := modifiers.GetPairTriggerAndMetric(object, metric, name)
		if err != nil {
			return answer{Error: err.Error()}
		}
		pairs[metric] = found[metric]
		quantity := *resource.NewMilliQuantity(int64(value*1000), resource.DecimalSI)
		metrics = append(metrics, external_metrics.ExternalMetricValue{MetricName: metric, Value: quantity})
	}
	result := modifiers.HandleScalingModifiers(object, metrics, pairs, false, nil, compiled, logr.Discard())
	if len(result) != 1 || result[0].MetricName != kedav1alpha1.CompositeMetricName {
		return answer{Error: fmt.Sprintf("expected one composite metric, got %v", result)}
	}
	value := result[0].Value.AsApproximateFloat64()
	return answer{Value: &value}
}

func run() error {
	var given input
	decoder := json.NewDecoder(os.Stdin)
	decoder.DisallowUnknownFields()
	if err := decoder.Decode(&given); err != nil {
		return err
	}
	program, err := kedav1alpha1.ValidateAndCompileScalingModifiers(&given.ScaledObject)
	if err != nil {
		return err
	}
	compiled := &cache.ScalersCache{ScaledObject: &given.ScaledObject, CompiledFormula: program}
	output := json.NewEncoder(os.Stdout)
	for _, each := range given.Rows {
		if err := output.Encode(evaluate(&given.ScaledObject, compiled, each)); err != nil {
			return err
		}
	}
	return nil
}

func main() {
	if err := run(); err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}
