//! Reads and writes of custom resources in the API, each write for the version that was read.

use serde_json::{Value, json};

use crate::controller::seen::SeenObject;
use crate::kube::{Api, ApiError, Resource};

/// `object` as it is now; `None`: it is gone.
pub async fn read(api: &Api, object: &SeenObject) -> Result<Option<SeenObject>, ApiError> {
    let resource = object.resource;
    let parse = |bytes: &[u8]| {
        let found: Value = serde_json::from_slice(bytes).map_err(|error| error.to_string())?;
        match found["metadata"]["name"] == *object.name {
            true => Ok(SeenObject::read(resource, &found)),
            false => Err("it is another object".to_owned()),
        }
    };
    api.discover(&object.path(), parse).await
}

/// Puts our finalizer to `network`, or takes it away; false if it has changed meanwhile.
pub async fn hold(api: &Api, network: &SeenObject, is_held: bool) -> Result<bool, ApiError> {
    debug_assert_eq!(network.resource, Resource::Networks);
    let finalizers = network.finalizers_with(is_held);
    let metadata = json!({"resourceVersion": &*network.version, "finalizers": finalizers});
    done(api.merge(&network.path(), json!({"metadata": metadata}).to_string()).await)
}

/// Writes the status of `object`; false if it has changed meanwhile.
pub async fn set_status(api: &Api, object: &SeenObject, status: Value) -> Result<bool, ApiError> {
    let metadata = json!({"resourceVersion": &*object.version});
    let patch = json!({"metadata": metadata, "status": status}).to_string();
    done(api.merge(&format!("{}/status", object.path()), patch).await)
}

/// What has changed or is gone comes by the watch.
fn done(answer: Result<(), ApiError>) -> Result<bool, ApiError> {
    match answer {
        Ok(()) => Ok(true),
        Err(ApiError::Conflict(why) | ApiError::Missing(why)) => {
            log::debug!("{why}");
            Ok(false)
        }
        Err(error) => Err(error),
    }
}
